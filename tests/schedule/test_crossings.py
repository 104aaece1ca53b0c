"""Crossings against microbatches: slopes derived by hand from the cycles of 1F1B and ZB-H1."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crosspipe.errors import Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, TimedBlock, TimedMessage, Timeline
from crosspipe.schedule.crossings import Crossings, crossings_per_microbatch, crossings_table, site_crossings
from crosspipe.schedule.order import Message

COUNTS = (8, 16, 24, 40)


def line(stages: int, sites: int, latency_ms: float) -> Callable[[int], Problem]:
    """F = D = 200 ms, W = 100 ms."""
    return lambda microbatches: Problem.uniform(
        stages=stages,
        microbatches=microbatches,
        sites=sites,
        forward_ms=200,
        input_grad_ms=200,
        weight_grad_ms=100,
        latency_ms=latency_ms,
    )


def ordered(problem: Problem, rows: list[list[Block]]) -> Schedule:
    return Schedule(
        traversal="ud",
        stages=problem.stages,
        chunks=1,
        microbatches=problem.microbatches,
        orders=tuple(tuple(row) for row in rows),
    )


def one_f_one_b(problem: Problem) -> Schedule:
    rows = []
    for stage in range(problem.stages):
        ahead = min(problem.stages - stage, problem.microbatches)
        row = [Block("F", 0, m) for m in range(ahead)]
        for m in range(problem.microbatches):
            row.append(Block("B", 0, m))
            row += [Block("F", 0, m + ahead)] if m + ahead < problem.microbatches else []
        rows.append(row)
    return ordered(problem, rows)


def zbh1(problem: Problem) -> Schedule:
    """1F1B with D for B, and W of a microbatch `stage` backwards late."""
    rows = []
    for stage, order in enumerate(one_f_one_b(problem).orders):
        row: list[Block] = []
        for block in order:
            row.append(block if block.kind == "F" else Block("D", 0, block.microbatch))
            if block.kind == "B" and block.microbatch >= stage:
                row.append(Block("W", 0, block.microbatch - stage))
        row += [Block("W", 0, m) for m in range(problem.microbatches - stage, problem.microbatches)]
        rows.append(row)
    return ordered(problem, rows)


def all_forward_first(problem: Problem) -> Schedule:
    row = [Block(kind, 0, m) for kind in "FB" for m in range(problem.microbatches)]
    return ordered(problem, [row] * problem.stages)


@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("latency", [1, 49, 51, 1000])
def test_1f1b_crosses_once_a_microbatch_however_short_the_link(stages: int, latency: float) -> None:
    """At the boundary s | s+1: F(k) on s, F(k) on s+1, B on s+1, B on s, F(k+2) on s, as s holds one more than s+1.

    Two crossings and two blocks of each kind per two microbatches: just what a stage works in that time, so there is
    no slack and each crossing counts.
    """
    rows = crossings_table(line(stages, 2, latency), {"1f1b": one_f_one_b}, COUNTS)
    assert crossings_per_microbatch(rows) == {"1f1b": pytest.approx(1)}
    for row in rows:  # without a link 1F1B takes (n + p - 1)(F + D + W)
        alone = (row.microbatches + stages - 1) * 500
        assert row.makespan_ns == round((alone + latency * row.crossings) * 1e6)
        assert row.peak_memory_bytes == stages * 2**20


@pytest.mark.parametrize(("stages", "sites", "slope"), [(4, 4, 6 / 4), (8, 4, 1), (3, 3, 4 / 3)])
def test_1f1b_over_more_sites(stages: int, sites: int, slope: float) -> None:
    """A cycle over h boundaries in a row gains h + 1 microbatches and crosses twice where they lie between sites.

    One stage a site: all p - 1 boundaries count, 2(p - 1) / p. Two stages a site: three of five, 6 / 6, no better than
    one of one.
    """
    rows = crossings_table(line(stages, sites, 100), {"1f1b": one_f_one_b}, (12, 24, 36, 48))
    assert crossings_per_microbatch(rows) == {"1f1b": pytest.approx(slope)}


@pytest.mark.parametrize(("latency", "slope"), [(1, 0), (49, 0), (51, 1), (1000, 1)])
def test_zbh1_hides_half_a_weight_gradient(latency: float, slope: float) -> None:
    """The cycle of 1F1B, with one W in it where a stage works two: W of slack per two crossings, so W / 2 = 50 ms."""
    rows = crossings_table(line(4, 2, latency), {"zbh1": zbh1}, COUNTS)
    assert crossings_per_microbatch(rows) == {"zbh1": pytest.approx(slope)}


def test_all_forward_first_crosses_there_and_back_once_and_pays_in_memory() -> None:
    rows = crossings_table(line(4, 2, 100), {"gpipe": all_forward_first}, COUNTS)
    assert [row.crossings for row in rows] == [2, 2, 2, 2]
    assert [row.peak_memory_bytes for row in rows] == [n * 2**20 for n in COUNTS]


def test_families_come_first_and_refusals_say_why() -> None:
    def picky(problem: Problem) -> Schedule:
        if problem.microbatches > 1:
            raise Infeasible("stage 0 needs more")
        return one_f_one_b(problem)

    rows = crossings_table(line(2, 2, 1), {"picky": picky, "1f1b": one_f_one_b}, (1, 2))
    assert [(r.family, r.microbatches, r.crossings) for r in rows] == [
        ("picky", 1, 2),
        ("picky", 2, None),
        ("1f1b", 1, 2),
        ("1f1b", 2, 2),  # F0 over, then stage 1 never idles (F0 B0 F1 B1), B1 back
    ]
    assert rows[1] == Crossings(family="picky", microbatches=2, refused="stage 0 needs more")
    assert crossings_per_microbatch(rows) == {"picky": None, "1f1b": 0}


def test_measured_timelines_are_counted_too() -> None:
    timeline = Timeline(
        traversal="ud",
        stages=2,
        chunks=1,
        microbatches=1,
        sites=(0, 1),
        blocks=(
            (TimedBlock(Block("F", 0, 0), 10, 20), TimedBlock(Block("B", 0, 0), 91, 95)),
            (TimedBlock(Block("F", 0, 0), 40, 50), TimedBlock(Block("B", 0, 0), 50, 60)),
        ),
        messages=(
            TimedMessage(Message("F", 0, 0), "0>1", 20, 20, 25, 38),
            TimedMessage(Message("D", 1, 0), "1>0", 60, 60, 65, 90),
        ),
        origin="real link",
    )
    assert site_crossings(timeline) == 2
