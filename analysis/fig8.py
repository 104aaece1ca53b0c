"""Figure 8: how much slower each schedule gets with the delay between two sites, against ZB-V without any.

crosspipe run experiment=fig8
python analysis/fig8.py campaigns/fig8
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import (
    along_delays,
    needed,
    one_each,
    options,
    require,
    run,
    unfinished,
    write_figure,
    write_table,
)
from crosspipe.report.figures import paper_style
from crosspipe.report.results import Results

DRAWS = "fig8.py draws one pipeline on two sites over delays in T_F (network.delay)"
GREEDY = "cross_ud_sub"

COMPARABLE = (
    "Simulated here and there; the paper states no numbers for this figure and not its F : D : W, which is 1 : 1 : 1 "
    "here, so the order of the curves compares and single values do not."
)


def slowdowns(results: Results) -> pl.DataFrame:
    """Every solved point with its time over that of ZB-V without delay, and its gap."""
    require(results, DRAWS, {"pipeline.sites": (2,), "network.delay": None})
    solved = results.points.filter(pl.col("predicted_makespan_ms").is_not_null())
    one_each(results, DRAWS, solved, ("schedule", "delay"))
    free = solved.filter(pl.col("schedule") == "zbv", pl.col("latency_ratio") == 0, pl.col("bandwidth_ratio") == 0)
    reference = needed(free, "zbv without delay")["predicted_makespan_ms"]
    return solved.select(
        "schedule", "latency_ratio", "bandwidth_ratio",
        makespan_ms=pl.col("predicted_makespan_ms"), slowdown=pl.col("predicted_makespan_ms") / reference,
        gap_percent=pl.col("gap_percent"),
    )  # fmt: skip


def draw_curves(table: pl.DataFrame) -> plt.Figure:
    """Slowdown along latency alone and along bandwidth alone."""
    figure = along_delays(table, pl.col("slowdown"), "time over ZB-V without delay")
    figure.suptitle("simulated", fontsize=8)
    return figure


def draw_gaps(table: pl.DataFrame) -> plt.Figure:
    """Gap of the greedy to the proven bound over the grid of delays."""
    own = table.filter(pl.col("schedule") == GREEDY)
    grid = own.pivot("bandwidth_ratio", index="latency_ratio", values="gap_percent").sort("latency_ratio")
    values = grid.drop("latency_ratio").cast(pl.Float64).to_numpy()
    with paper_style():
        figure, axis = plt.subplots(figsize=(3.4, 2.6), layout="constrained")
        shown = axis.imshow(values, origin="lower", cmap="cividis")
        for i, row in enumerate(values):
            for j, gap in enumerate(row):
                if np.isnan(gap):
                    continue  # not solved
                dark = gap < 0.6 * np.nanmax(values)
                axis.text(j, i, f"{gap:.1f}", ha="center", va="center", color="white" if dark else "black")
        axis.set_xticks(range(values.shape[1]), grid.columns[1:])
        axis.set_yticks(range(values.shape[0]), grid["latency_ratio"].to_list())
        axis.set_xlabel("T_bw/T_F")
        axis.set_ylabel("T_lat/T_F")
        axis.grid(visible=False)
        figure.colorbar(shown, label=f"gap of {GREEDY} to the bound (%)")
    return figure


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    table = slowdowns(results)
    title = "Figure 8, slowdown against ZB-V without delay (simulated)"
    write_table(table, told.out / "fig8", title, [COMPARABLE, *unfinished(results)])
    write_figure(draw_curves(table), told.out / "fig8")
    if GREEDY in table["schedule"]:
        write_figure(draw_gaps(table), told.out / "fig8_greedy_gap")
    else:
        print(f"{GREEDY}: not solved in this campaign, so there is no picture of its gap")


if __name__ == "__main__":
    run(main)
