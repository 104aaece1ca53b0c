"""Figure 15: bubble strides, the delay that a static schedule pays again and again. Drawn, and counted.

crosspipe run experiment=fig15
python analysis/fig15.py campaigns/fig15
"""

from __future__ import annotations

import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import needed, options, write_figure, write_table
from crosspipe.schedule import simulate

COMPARABLE = (
    "Simulated here and there at the paper's shape and latency; the paper draws this figure and states no numbers, so "
    "what compares is where the strides are. F = D = W here."
)


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    rows = []
    for name, artifacts in results.artifacts.items():
        if artifacts.problem is None or artifacts.schedule is None:
            continue
        timeline = simulate(artifacts.problem, artifacts.schedule)
        path = timeline.critical_path()
        crossing = [step for step in path if step.crosses_sites]
        reference = artifacts.problem.forward_reference_ns()
        row = results.points.row(by_predicate=pl.col("point") == name, named=True)
        rows.append(
            {
                "schedule": row["schedule"],
                "makespan in T_F": timeline.makespan_ns / reference,
                "site crossings on the critical path": len(crossing),
                "makespan spent in crossings_percent": 100
                * sum(s.end_ns - s.start_ns for s in crossing)
                / timeline.makespan_ns,
                "mean bubble_percent": 100 * row["predicted_bubble_ratio"],
                "gap_percent": row["gap_percent"],
            }
        )
        write_figure(timeline.plot(width_in=7.0), told.out / f"fig15_{row['schedule']}")
    table = pl.DataFrame(rows)
    needed(table, "a schedule")
    write_table(table, told.out / "fig15", "Figure 15, what the delay costs each schedule", [COMPARABLE])


if __name__ == "__main__":
    main()
