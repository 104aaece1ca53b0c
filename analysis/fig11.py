"""Figure 11: latency alone, and bandwidth alone; and how much the best schedule saves where bandwidth is least.

crosspipe run experiment=fig11
python analysis/fig11.py campaigns/fig11
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import options, write_figure, write_table
from crosspipe.report.figures import paper_style, styles

PUBLISHED_SAVING_PERCENT = 21.9  # iteration time against the same static schedule with early receives, T_bw/T_F = 2
COMPARABLE = (
    "Simulated, so receives are always early: what compares is the published 21.9 % against static schedules with "
    "early receives. The published 33.6 % is against them as shipped, a property of an engine and not of an order."
)
AXES = (("latency_ratio", "T_lat/T_F", "bandwidth_ratio"), ("bandwidth_ratio", "T_bw/T_F", "latency_ratio"))


def headline(points: pl.DataFrame) -> pl.DataFrame:
    """At the largest T_bw with no latency: what each schedule saves over ZB-H1, and the most any order of it could."""
    widest = points["bandwidth_ratio"].max()
    own = points.filter(pl.col("latency_ratio") == 0, pl.col("bandwidth_ratio") == widest)
    reference = own.filter(pl.col("schedule") == "zbh1")["predicted_makespan_ms"].item()

    def saved(column: str) -> pl.Expr:
        return (1 - pl.col(column) / reference) * 100

    return own.select(
        "schedule", "traversal", makespan_ms=pl.col("predicted_makespan_ms"), gap_percent=pl.col("gap_percent"),
        saved_over_zbh1_percent=saved("predicted_makespan_ms"), most_possible_percent=saved("lower_bound_ms"),
        published_percent=pl.when(pl.col("schedule") == "cross_ud").then(PUBLISHED_SAVING_PERCENT),
    )  # fmt: skip


def draw(points: pl.DataFrame) -> plt.Figure:
    """Makespan of every schedule along latency alone and bandwidth alone, with the bound of the traversals."""
    looks = styles(points["schedule"].to_list())
    with paper_style():
        figure, axes = plt.subplots(1, 2, figsize=(3.4, 2.6), sharey=True, layout="constrained")
        for axis, (column, label, other) in zip(axes, AXES, strict=True):
            for name, look in looks.items():
                own = points.filter(pl.col("schedule") == name, pl.col(other) == 0).sort(column)
                line = {"marker": look.marker, "color": look.colour, "mfc": "none", "linestyle": look.dashes}
                axis.plot(own[column], own["predicted_makespan_ms"] / 1e3, label=name, **line)
            axis.set_xlabel(label)
        axes[0].set_ylabel("makespan (s, simulated)")
        axes[0].set_ylim(bottom=0)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    told = options(__doc__)
    points = load_results(told.campaign, told.store).points.filter(pl.col("predicted_makespan_ms").is_not_null())
    title = "Figure 11, what is saved over ZB-H1 at the least bandwidth (simulated)"
    write_table(headline(points), told.out / "fig11", title, [COMPARABLE])
    write_figure(draw(points), told.out / "fig11")


if __name__ == "__main__":
    main()
