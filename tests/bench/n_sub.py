"""The study that the CrossPipe paper leaves out: what n_sub, the number of pieces of a block, does to its greedy.

`python tests/bench/n_sub.py` (minutes) runs `cross_ud_sub` with n_sub in {1, 2, 4, 8, 16} over the five pairs of delays
and writes down what can be executed, what the idealised plan promises, and how long planning takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from support.driver import Found, Task, carry_out
from support.instances import DELAYS, UNIFORM, label, uniform
from support.measure import statics
from support.options import options_of
from support.page import milliseconds, table
from support.results import Greedy, Result, Wanted, now
from support.setup import Setup

from crosspipe.problem import Problem
from crosspipe.problem.spread import spread
from crosspipe.solver import solve
from crosspipe.solver.greedy import greedy_plan

PIECES = (1, 2, 4, 8, 16)
FAMILIES = ("4x8, limit 4", "8x16, limit 8", "8x32, limit 8", "16x32, limit 16", "64x128, limit 64")
QUICK_FAMILIES = FAMILIES[:2]
LEAST_SAMPLES = 6

INTRODUCTION = """\
`cross_ud_sub` is CrossPipe's greedy, CrossUDSub. It plans with every block cut in n_sub pieces; the paper does not say
which n_sub it used. Real F and D run whole, so three makespans belong to each n_sub:

- *executable, W whole*: F, D and W whole. It does not depend on n_sub and is what `solve` returns by default.
- *executable, W in n_sub pieces*: F and D whole, W in pieces (`weight_grad_pieces` of the Problem).
- *idealised*: the paper's plan, F, D and W in pieces. No real schedule need reach it.

Block times, delays and limits are those of [the scheduler's bar](scheduler.md), two sites; *bound* holds for any
executable schedule, *static* is the best static schedule that fits. Makespans in ms."""


class Point(NamedTuple):
    """One n_sub on one problem."""

    family: str
    delays: str
    n_sub: int
    problem: Problem

    @property
    def key(self) -> str:
        return f"{self.family}: {self.delays} n_sub {self.n_sub}"


def main(arguments: Sequence[str]) -> int:
    options = options_of(__doc__, arguments)
    names = QUICK_FAMILIES if options.quick else FAMILIES
    points = [
        Point(family.name, label(delays), n_sub, uniform(family, "ud", delays))
        for family in UNIFORM
        if family.name in names
        for delays in DELAYS
        for n_sub in PIECES
    ]
    budget_s = 0.1 if options.quick else 0.5
    tasks = [Task(p.key, Wanted(p.problem.digest()), partial(measure, p, budget_s), _words) for p in points]
    return carry_out("n_sub", "n_sub, the pieces of the greedy", tasks, partial(n_sub_page, points), options, arguments)


def _words(result: Result) -> str:
    assert isinstance(result, Greedy)
    return f"{result.cut_ns / 1e6:.2f} ms, idealised {result.ideal_ns / 1e6:.2f} ms"


def measure(point: Point, budget_s: float, setup: Setup, show: Callable[[str], None]) -> Greedy:
    """The greedy with one n_sub on one problem; planning is timed for `budget_s`, after one plan that is not."""
    problem, n_sub = point.problem, point.n_sub
    whole = solve(problem, "cross_ud_sub", pieces=n_sub)
    cut = solve(msgspec.structs.replace(problem, weight_grad_pieces=n_sub), "cross_ud_sub", pieces=n_sub)
    assert whole.certificate is not None
    assert whole.ideal_makespan_ns is not None
    assert cut.certificate is not None
    samples: list[float] = []
    until = time.perf_counter() + budget_s
    while len(samples) < LEAST_SAMPLES or time.perf_counter() < until:
        began = time.perf_counter()
        greedy_plan(problem, (n_sub, n_sub, n_sub), record=False)
        samples.append(time.perf_counter() - began)
    return Greedy(
        key=point.key,
        problem_digest=problem.digest(),
        finished=now(),
        n_sub=n_sub,
        whole_ns=whole.certificate.makespan_ns,
        cut_ns=cut.certificate.makespan_ns,
        ideal_ns=whole.ideal_makespan_ns,
        lower_bound_ns=whole.certificate.lower_bound_ns,
        statics=statics(problem),
        plan=spread(samples),
    )


def n_sub_page(points: Sequence[Point], found: Found) -> list[str]:
    """Introduction, what the study says in numbers, a table a family, planning times."""
    results: dict[str, dict[str, dict[int, Greedy]]] = {}
    for point in points:
        if point.key in found:
            result = found[point.key][1]
            assert isinstance(result, Greedy)
            results.setdefault(point.family, {}).setdefault(point.delays, {})[point.n_sub] = result
    return [INTRODUCTION, _gains(results), *(_makespans(name, rows) for name, rows in results.items()), _times(results)]


def _gains(results: Mapping[str, Mapping[str, Mapping[int, Greedy]]]) -> str:
    """How much pieces gain, over all problems."""
    of_all = [by_n for rows in results.values() for by_n in rows.values()]
    lines = []
    for n_sub in PIECES:
        have = [by_n[n_sub] for by_n in of_all if n_sub in by_n]
        if have:
            cut = [g.cut_ns / g.whole_ns - 1 for g in have]
            same = sum(g.ideal_ns == g.cut_ns for g in have)
            lines.append([str(n_sub), str(len(have)), *_range(cut), f"{same} of {len(have)}"])
    heads = ["n_sub", "problems", "least", "median", "most", "idealised is the same"]
    words = (
        "Makespan with W in n_sub pieces against W whole. The greedy runs whole F and whole D in turn: once one has "
        "begun, only pieces of W come in between, where memory forbids its next piece. So pieces of F and D matter "
        "where memory is short; the last column counts where the idealised plan takes just as long as W in pieces."
    )
    return f"## What pieces change\n\n{words}\n\n" + table(heads, lines)


def _range(changes: Sequence[float]) -> list[str]:
    ordered = sorted(changes)
    return [f"{100 * value:+.2f} %" for value in (ordered[0], ordered[len(ordered) // 2], ordered[-1])]


def _makespans(name: str, rows: Mapping[str, Mapping[int, Greedy]]) -> str:
    lines = []
    for delays, by_n in rows.items():
        any_one = next(iter(by_n.values()))
        static = min(any_one.statics.items(), key=lambda item: item[1], default=None)
        lines.append(
            [
                delays,
                milliseconds(any_one.lower_bound_ns),
                "none fits" if static is None else f"{static[0]} {milliseconds(static[1])}",
                milliseconds(any_one.whole_ns),
                *(milliseconds(by_n[n].cut_ns) if n in by_n else "–" for n in PIECES[1:]),
                *(milliseconds(by_n[n].ideal_ns) if n in by_n else "–" for n in PIECES),
            ]
        )
    heads = [
        "delays",
        "bound",
        "static",
        "W whole",
        *(f"W in {n}" for n in PIECES[1:]),
        *(f"ideal {n}" for n in PIECES),
    ]
    return f"## {name}\n\n" + table(heads, lines)


def _times(results: Mapping[str, Mapping[str, Mapping[int, Greedy]]]) -> str:
    lines = []
    for name, rows in results.items():
        cells = []
        for n_sub in PIECES:
            medians = [1e3 * by_n[n_sub].plan.median for by_n in rows.values() if n_sub in by_n]
            cells.append(f"{min(medians):.3g} to {max(medians):.3g}" if medians else "–")
        lines.append([name, *cells])
    words = "Compiled, one core, ms: least and largest median over the pairs of delays, every block in n_sub pieces."
    return f"## Time of a plan\n\n{words}\n\n" + table(["family", *(f"n_sub {n}" for n in PIECES)], lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
