"""Table 5: seconds per microbatch of every schedule, with proven bound and gap, beside what the paper measured.

crosspipe run experiment=table5
python analysis/table5.py campaigns/table5

Cells that are off the published value are explained below the table, by what `causes.py` computes: minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import polars as pl
from cases import CASES, DRAWS, OURS, place, problem_of, wanted
from causes import GIB, Best, explain, per_microbatch_s, with_limit

from crosspipe.problem import Problem
from crosspipe.report import load_results
from crosspipe.report.export import (
    Options,
    needed,
    one_each,
    options,
    require,
    run,
    unfinished,
    write_figure,
    write_table,
)
from crosspipe.report.figures import paper_style, styles
from crosspipe.report.results import STATIC_SCHEDULES, Results
from crosspipe.schedule import simulate
from crosspipe.schedule.crossings import site_crossings
from crosspipe.solver import SCHEDULES, solve

PUBLISHED = pl.read_csv(Path(__file__).parent / "published" / "table5_s_per_microbatch.csv")
DELAY = pl.format("({}, {})", "latency_over_tf", "bandwidth_over_tf").str.replace_all(r"\.0\b", "").alias("delay")
HEAD = "T_lat/T_F, T_bw/T_F"
MISFIT = ("needs GiB", "limit GiB", "s/microbatch without limit", "that/published")
COMPARABLE = (
    "Ours is simulated at block times that were inferred from the paper's delay-free column and excludes gradient norm "
    "and optimizer; the paper measured on GH200 nodes, static schedules as shipped (without early receives)."
)


def loaded(told: Options) -> Results:
    """The campaign, if it is one of this table."""
    results = load_results(told.campaign, told.store)
    require(results, DRAWS, wanted(sites=2))
    points = place(results)
    needed(points, "a case of the paper (16 or 32 microbatches, memory of 8 or 16)")
    one_each(results, DRAWS, points, ("case", "delay", "schedule"))
    return results


def cells(results: Results) -> list[dict[str, Any]]:
    """One row per case and delay: the best schedule of ours and the best static one, with what is proven and known."""
    rows = []
    solved = place(results).filter(pl.col("s_per_microbatch").is_not_null())
    for (case, delay), own in solved.group_by("case", "delay", maintain_order=True):
        best = _fastest(own, OURS)
        static = _fastest(own, STATIC_SCHEDULES)
        if best is None:
            continue  # nothing of ours is solved here
        published = published_times(best)
        known = {name: published[name] for name in OURS if published.get(name) is not None}
        if not known:
            continue  # a delay that is not in the paper
        claimed = min(known, key=lambda name: known[name])
        message = problem_of(results, best["point"]).costs[0][0].forward_message_bytes
        rate = message * 8 / (best["serialisation_ms"] * 1e6) if best["serialisation_ms"] else None
        rows.append(
            {
                "case": case,
                HEAD: delay,
                "latency_ms": best["latency_ms"],
                "Gbit/s, n_DP=1": rate,
                "Gbit/s, n_DP=16": None if rate is None else 16 * rate,
                "best static": None if static is None else static["schedule"],
                "its s/microbatch": None if static is None else static["s_per_microbatch"],
                "our best": best["schedule"],
                "s/microbatch": best["s_per_microbatch"],
                "against_static_percent": None
                if static is None
                else (best["s_per_microbatch"] / static["s_per_microbatch"] - 1) * 100,
                "bound s/microbatch": best["bound_s"],
                "gap_percent": best["gap_percent"],
                "crossings static": None if static is None else crossings(results, static["point"]),
                "crossings ours": crossings(results, best["point"]),
                "published best": claimed,
                "its published s/microbatch": known[claimed],
                "ours/published": best["s_per_microbatch"] / known[claimed],
            }
        )
    return rows


def published_times(point: dict[str, Any]) -> dict[str, float | None]:
    """The published seconds per microbatch at the case and delay of `point`, by schedule; empty where none are."""
    here = PUBLISHED.filter(
        pl.col("case") == point["case"],
        pl.col("latency_over_tf") == point["latency_ratio"],
        pl.col("bandwidth_over_tf") == point["bandwidth_ratio"],
    )
    return here.drop("case", "latency_over_tf", "bandwidth_over_tf").row(0, named=True) if here.height else {}


def _fastest(points: pl.DataFrame, names: Sequence[str]) -> dict[str, Any] | None:
    own = points.filter(pl.col("schedule").is_in(names)).sort("s_per_microbatch")
    return own.row(0, named=True) if own.height else None


def crossings(results: Results, point: str) -> int:
    """Times that the critical path crosses between sites."""
    schedule = results.artifacts[point].schedule
    assert schedule is not None
    return site_crossings(simulate(problem_of(results, point), schedule))


def problems(results: Results, points: pl.DataFrame) -> dict[str, Problem]:
    """The Problems of one case and delay by traversal: all schedules of a traversal have the same."""
    solved = points.filter(pl.col("traversal").is_not_null())
    return {traversal: problem_of(results, name) for name, traversal in solved.select("point", "traversal").iter_rows()}


def causes(results: Results, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A note per cell that is off the published value."""
    points, notes = place(results), []
    free = {row["case"]: row["ours/published"] for row in rows if row[HEAD] == "(0, 0)"}
    for row in rows:
        own = points.filter(pl.col("case") == row["case"], pl.col("delay") == row[HEAD])
        name = own.filter(pl.col("schedule") == row["our best"])["point"].item()
        artifacts = results.artifacts[name]
        assert artifacts.schedule is not None
        best = Best(
            schedule=artifacts.schedule,
            problem=problem_of(results, name),
            bound_s=row["bound s/microbatch"],
            problems=problems(results, own),
            published_s=row["its published s/microbatch"],
            without_delay=free.get(row["case"]),
        )
        cause = explain(best, artifacts.point.config["pipeline"]["memory_microbatches"])
        if cause is not None:
            notes.append(f"Case {row['case']}, {row[HEAD]}, {row['ours/published']:.3f} of the published: {cause}")
    return notes


def schedules(results: Results) -> pl.DataFrame:
    """Every schedule of every cell beside its published time; for those that do not fit, what they would need."""
    points, rows = place(results), []
    for point in points.iter_rows(named=True):
        name, takes_s = point["schedule"], point["s_per_microbatch"]
        known = published_times(point).get(name)
        row = {
            "case": point["case"],
            HEAD: point["delay"],
            "schedule": name,
            "status": point["status"],
            "s/microbatch": takes_s,
            "gap_percent": point["gap_percent"],
            "published s/microbatch": known,
            "ours/published": takes_s / known if takes_s and known else None,
        }
        here = points.filter(pl.col("case") == point["case"], pl.col("delay") == point["delay"])
        problem = problems(results, here).get(SCHEDULES[name].traversal or "")
        misfit = point["status"] == "infeasible" and problem is not None
        rows.append(row | (without_limit(problem, name, known) if misfit else dict.fromkeys(MISFIT)))
    return pl.DataFrame(rows, infer_schema_length=None).sort("case", maintain_order=True)


def without_limit(problem: Problem, name: str, known: float | None) -> dict[str, float | None]:
    """What a fixed order that does not fit would need and take, if it might."""
    free, limit = with_limit(problem, None), problem.activation_limit_bytes[0]
    order = solve(free, name, time_limit_s=1)
    takes_s = per_microbatch_s(free, order)
    values = (
        max(simulate(free, order).peak_memory_bytes()) / GIB,
        None if limit is None else limit / GIB,
        takes_s,
        takes_s / known if known else None,
    )
    return dict(zip(MISFIT, values, strict=True))


def draw(results: Results, rows: Sequence[dict[str, Any]]) -> plt.Figure:
    """Per case and delay, every schedule of the paper side by side: simulated here, and measured there as a cross."""
    looks, points = styles(PUBLISHED.columns[3:]), place(results)
    cases = [case for case in CASES if any(row["case"] == case for row in rows)]
    of_rows = {row[HEAD] for row in rows}
    delays = [
        d for d in points.sort("latency_ratio", "bandwidth_ratio")["delay"].unique(maintain_order=True) if d in of_rows
    ]
    with paper_style():
        size = (3.4, 1.0 + 1.4 * len(cases))
        figure, grid = plt.subplots(len(cases), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
        axes = list(grid.flat)
        for axis, case in zip(axes, cases, strict=True):
            own = points.filter(pl.col("case") == case)
            published = PUBLISHED.filter(pl.col("case") == case)
            for index, (column, look) in enumerate(looks.items()):
                times = dict(own.filter(pl.col("schedule") == column).select("delay", "s_per_microbatch").iter_rows())
                known = dict(published.select(DELAY, column).iter_rows())
                here = [d if d in own["delay"] else None for d in delays]
                places = [i + (index - (len(looks) - 1) / 2) * 0.13 for i in range(len(delays))]
                marks = {"color": look.colour, "linestyle": "none"}
                axis.plot(places, [times.get(d) for d in here], marker=look.marker, mfc="none", label=column, **marks)
                axis.plot(places, [known.get(d) for d in here], marker="x", markersize=3, **marks)
            axis.set_xticks(range(len(delays)), [d.replace(", ", ",\n") for d in delays])
            axis.set_title(f"case {case}: {CASES[case]}")
            axis.set_ylabel("s per microbatch")
            axis.margins(y=0.1)
            axis.set_ylim(bottom=0)
        axes[-1].set_xlabel("(T_lat, T_bw) / T_F\nx: published, measured; other marks: simulated")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    told = options(__doc__)
    results = loaded(told)
    rows = cells(results)
    needed(pl.DataFrame(rows, infer_schema_length=None), "a schedule of ours at a delay of the paper")
    notes = unfinished(results)
    title = "Table 5, simulated with bound and gap"
    table = pl.DataFrame(rows, infer_schema_length=None)
    write_table(table, told.out / "table5", title, [COMPARABLE, *notes, *causes(results, rows)])
    every = schedules(results)
    misfits = every.filter(pl.col("status") == "infeasible")
    if misfits.height:
        title = "Infeasible: schedules that do not fit the memory of a case, and what they would take without its limit"
        shown = misfits.select("case", HEAD, "schedule", "published s/microbatch", *MISFIT)
        write_table(shown, told.out / "table5_infeasible", title, notes)
    title = "Table 5, every schedule beside its published time (static ones published as shipped)"
    write_table(every.drop(MISFIT), told.out / "table5_schedules", title, notes)
    write_figure(draw(results, rows), told.out / "table5")


if __name__ == "__main__":
    run(main)
