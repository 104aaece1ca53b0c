"""Figure 14: how good a schedule is found, and in what time, as the pipeline grows.

crosspipe run experiment=fig14
python analysis/fig14.py campaigns/fig14
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import needed, one_each, options, run, unfinished, write_figure, write_table
from crosspipe.report.figures import paper_style, plain_log, styles
from crosspipe.report.results import Results

DRAWS = "fig14.py draws one point for each schedule and number of stages"

COMPARABLE = (
    "The paper lets Gurobi and CP Optimizer run with 256 threads for up to 7200 s and stops at a gap of 1 %. Here a "
    "policy search and CP-SAT have one machine and the time limit, and a column says what proved the bound: the gap "
    "after a time compares, the time itself depends on the machine."
)


def sizes(results: Results) -> pl.DataFrame:
    """Gap and time to it by stages and schedule."""
    points = results.points.filter(pl.col("predicted_makespan_ms").is_not_null())
    needed(points, "a schedule")
    one_each(results, DRAWS, points, ("schedule", "stages"))
    return (
        points.select(
            "schedule", "stages", "microbatches", blocks=3 * pl.col("stages") * pl.col("microbatches"),
            gap_percent=pl.col("gap_percent"), solver_wall_s=pl.col("solver_wall_s"), proven_by=pl.col("proven_by"),
        )
        .sort("schedule", "stages")
    )  # fmt: skip


def draw(table: pl.DataFrame) -> plt.Figure:
    """Gap above, time below, over the number of stages."""
    looks = styles(table["schedule"].to_list())
    with paper_style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(3.4, 3.4), sharex=True, layout="constrained")
        for name, look in looks.items():
            own = table.filter(pl.col("schedule") == name)
            line = {"marker": look.marker, "color": look.colour, "mfc": "none"}
            upper.plot(own["stages"], own["gap_percent"], linestyle=look.dashes, label=name, **line)
            lower.plot(own["stages"], own["solver_wall_s"], linestyle=look.dashes, **line)
        upper.axhline(1, color="black", linewidth=0.8, linestyle=":")
        upper.set_ylabel("gap to bound (%)")
        lower.set_ylabel("time spent (s)")
        plain_log(lower.yaxis)
        plain_log(lower.xaxis, table["stages"])
        two = (table["microbatches"] == 2 * table["stages"]).all()
        lower.set_xlabel("stages, two microbatches each" if two else "stages")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    table = sizes(results)
    write_table(table, told.out / "fig14", "Figure 14, gap and time by size", [COMPARABLE, *unfinished(results)])
    write_figure(draw(table), told.out / "fig14")


if __name__ == "__main__":
    run(main)
