"""Site crossings on the critical path against the number of microbatches, for every schedule by name.

`python tests/bench/crossings.py` (a quarter of an hour) writes down the CrossPipe paper's central analysis:
a schedule whose path crosses more often with every microbatch pays the latency again and again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from support.driver import Found, Task, carry_out
from support.instances import DELAYS, Family, label, uniform
from support.measure import STATIC_FAMILIES
from support.options import options_of
from support.page import percent, table
from support.results import Crossed, Result, Wanted, now
from support.setup import Setup

from crosspipe.problem import Problem
from crosspipe.problem.problem import MICROBATCH_UNITS
from crosspipe.problem.traversal import TRAVERSALS
from crosspipe.schedule import Schedule
from crosspipe.schedule.crossings import Crossings, crossings_per_microbatch, crossings_table
from crosspipe.solver import SCHEDULES, solve

MICROBATCHES = (8, 16, 24, 32, 48, 64)
QUICK_MICROBATCHES = (4, 8, 12)
TIME_LIMIT_S, QUICK_TIME_LIMIT_S = 10.0, 1.0

INTRODUCTION = """\
Two sites, {stages} stages, block times and delays of [the scheduler's bar](scheduler.md). Searched schedules and the
greedy have memory for {stages} microbatches; static ones have no limit here, and *peak* says how many microbatches they
hold at the largest count. A search has {limit:g} s.

A number in the table is how many messages between sites lie with their latency on the critical path: what one more ns
of latency costs in ns. *Per microbatch* is its slope over the microbatches (least squares). An order that holds a
bounded number of microbatches has cycles through both sites that repeat every few microbatches; where the delay exceeds
the slack of one, the count grows with the microbatches. 1F1B has no slack, ZB-H1 has half a W; GPipe has no such cycle,
and pays in memory. For a searched schedule the count is that of the one found; *gap* is its largest over the counts,
against the proven lower bound."""


class Point(NamedTuple):
    """One schedule by name at one number of microbatches and one pair of delays."""

    delays: str
    name: str
    problem: Problem
    time_limit_s: float | None  # None: nothing is searched

    @property
    def key(self) -> str:
        return f"{self.delays} {self.name} n {self.problem.microbatches}"


def main(arguments: Sequence[str]) -> int:
    options = options_of(__doc__, arguments)
    points = list(_points(options.quick, options.time_limit))
    tasks = [
        Task(p.key, Wanted(p.problem.digest(), p.time_limit_s), partial(measure, p), partial(_words, p)) for p in points
    ]
    return carry_out("crossings", "Site crossings", tasks, partial(crossings_page, points), options, arguments)


def _points(quick: bool, time_limit_s: float | None) -> Iterator[Point]:
    """Every schedule by name; static ones without a memory limit."""
    stages = 4 if quick else 8
    family = Family("", stages, 0, stages, ())
    limit = time_limit_s or (QUICK_TIME_LIMIT_S if quick else TIME_LIMIT_S)
    for delays in DELAYS[1:3] if quick else DELAYS[1:]:
        for name, entry in sorted(SCHEDULES.items(), key=lambda item: TRAVERSALS.index(item[1].traversal or "ud")):
            if entry.traversal is None:  # the portfolio is one of the others
                continue
            for microbatches in QUICK_MICROBATCHES if quick else MICROBATCHES:
                problem = uniform(family, entry.traversal, delays, microbatches=microbatches)
                if entry.family in STATIC_FAMILIES:
                    problem = msgspec.structs.replace(problem, activation_limit_bytes=(None,) * stages)
                yield Point(label(delays), name, problem, limit if entry.family == "exact" else None)


def _words(point: Point, result: Result) -> str:
    assert isinstance(result, Crossed)
    return result.row.refused or f"{result.row.crossings} crossings, gap {percent(result.gap or 0)}"


def measure(point: Point, setup: Setup, show: Callable[[str], None]) -> Crossed:
    """Solves one point and counts."""
    made: list[Schedule] = []

    def family(problem: Problem) -> Schedule:
        limit_s = point.time_limit_s or TIME_LIMIT_S
        made.append(solve(problem, point.name, time_limit_s=limit_s, workers=setup.workers, seed=setup.seed))
        return made[0]

    (row,) = crossings_table(lambda _: point.problem, {point.name: family}, (point.problem.microbatches,))
    certificate = made[0].certificate if made else None
    return Crossed(
        key=point.key,
        problem_digest=point.problem.digest(),
        time_limit_s=point.time_limit_s,
        finished=now(),
        row=row,
        gap=None if certificate is None else certificate.gap,
    )


def crossings_page(points: Sequence[Point], found: Found) -> list[str]:
    """A table per pair of delays, and why what is missing is missing."""
    crossed: dict[str, list[Crossed]] = {}
    for point in points:
        if point.key in found:
            result = found[point.key][1]
            assert isinstance(result, Crossed)
            crossed.setdefault(point.delays, []).append(result)
    stages, limit = points[0].problem.stages, next(p.time_limit_s for p in points if p.time_limit_s is not None)
    tables = [f"## {delays}\n\n{_table(rows)}" for delays, rows in crossed.items()]
    refused = {
        f"{result.row.family} with {result.row.microbatches} microbatches: {result.row.refused}"
        for rows in crossed.values()
        for result in rows
        if result.row.refused
    }
    notes = "## Left out\n\n" + "\n".join(f"- {line}" for line in sorted(refused)) if refused else ""
    return [INTRODUCTION.format(stages=stages, limit=limit), *tables, notes]


def _table(results: Sequence[Crossed]) -> str:
    rows: dict[str, list[Crossings]] = {}
    gaps: dict[str, float] = {}
    for result in results:
        name = result.row.family
        rows.setdefault(name, []).append(result.row)
        if result.gap is not None:
            gaps[name] = max(gaps.get(name, 0.0), result.gap)
    counts = sorted({row.microbatches for of_family in rows.values() for row in of_family})
    slopes = crossings_per_microbatch(row for of_family in rows.values() for row in of_family)
    lines = []
    for name, of_family in rows.items():
        entry, slope = SCHEDULES[name], slopes[name]
        by_count = {row.microbatches: row.crossings for row in of_family}
        peaks = [row.peak_memory_bytes for row in of_family if row.peak_memory_bytes is not None]
        lines.append(
            [
                name,
                str(entry.traversal),
                *("–" if by_count.get(n) is None else str(by_count[n]) for n in counts),
                "–" if slope is None else f"{slope:.2f}",
                f"{peaks[-1] / MICROBATCH_UNITS:.3g}" if peaks else "–",
                percent(gaps[name]) if entry.family == "exact" and name in gaps else "",
            ]
        )
    heads = ["schedule", "traversal", *(f"n {n}" for n in counts), "per microbatch", "peak", "gap"]
    return table(heads, lines, text_columns=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
