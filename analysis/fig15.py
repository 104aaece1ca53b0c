"""Figure 15: bubble strides, the delay that a static schedule pays again and again. Drawn, and counted.

crosspipe run experiment=fig15
python analysis/fig15.py campaigns/fig15
"""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import needed, one_each, options, run, unfinished, write_figure, write_table
from crosspipe.report.results import Results
from crosspipe.schedule import Timeline, simulate

DRAWS = "fig15.py draws one pipeline, a picture for each schedule and delay"
COMPARABLE = (
    "Simulated here and there. The paper draws this figure, of 16 stages, 32 microbatches and T_lat/T_F = 1.5, and "
    "states no numbers, so what compares is where the strides are. F = D = W in experiment=fig15."
)


def pictures(results: Results) -> dict[str, tuple[dict[str, Any], Timeline]]:
    """The row and the timeline of every solved point, by its picture's name: with the delay in it where several are."""
    points = results.points.filter(pl.col("predicted_makespan_ms").is_not_null())
    needed(points, "a schedule")
    one_each(results, DRAWS, points, ("schedule", "delay"))
    several = points["delay"].n_unique() > 1
    found = {}
    for row in points.iter_rows(named=True):
        artifacts = results.artifacts[row["point"]]
        if artifacts.problem is not None and artifacts.schedule is not None:
            words = f"{row['schedule']} {row['delay']}" if several else row["schedule"]
            stem = re.sub(r"[^\w.]+", "_", f"fig15 {words}").strip("_")
            found[stem] = (row, simulate(artifacts.problem, artifacts.schedule))
    return found


def counted(row: dict[str, Any], timeline: Timeline) -> dict[str, Any]:
    """How often the critical path of one schedule crosses sites, and what that takes."""
    crossing = [step for step in timeline.critical_path() if step.crosses_sites]
    spent_ns = sum(step.end_ns - step.start_ns for step in crossing)
    return {
        "schedule": row["schedule"],
        "delay": row["delay"],
        "makespan in T_F": timeline.makespan_ns / 1e6 / row["forward_reference_ms"],
        "site crossings on the critical path": len(crossing),
        "makespan spent in crossings_percent": 100 * spent_ns / timeline.makespan_ns,
        "mean bubble_percent": 100 * row["predicted_bubble_ratio"],
        "gap_percent": row["gap_percent"],
    }


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    found = pictures(results)
    table = pl.DataFrame([counted(*drawn) for drawn in found.values()])
    if table["delay"].n_unique() == 1:
        table = table.drop("delay")
    for stem, (_, timeline) in found.items():
        write_figure(timeline.plot(width_in=7.0), told.out / stem)
    title = "Figure 15, what the delay costs each schedule"
    write_table(table, told.out / "fig15", title, [COMPARABLE, *unfinished(results)])


if __name__ == "__main__":
    run(main)
