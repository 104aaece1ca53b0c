"""Ticks: exact where they can be, else a bound in ticks is still a bound in ns, from 0.0004 ms to ten minutes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from random_problems import problems

from crosspipe.problem import Problem
from crosspipe.schedule import Schedule, simulate_reference
from crosspipe.solver import solve, ticks
from crosspipe.solver.pool import one_at_a_time
from crosspipe.solver.ticks import in_ticks


def two_stages(**times: float) -> Problem:
    return Problem.uniform(
        traversal="ud",
        stages=2,
        microbatches=3,
        sites=2,
        **{"forward_ms": 1.0, "input_grad_ms": 1.0, "weight_grad_ms": 1.0, **times},
    )


def test_the_tick_divides_every_duration() -> None:
    counted = in_ticks(two_stages(forward_ms=1.5, latency_ms=0.25), 10**9)
    assert (counted.tick_ns, counted.error_ns) == (250_000, 0)
    cost = counted.problem.costs[0][0]
    assert (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns) == (6, 4, 4)
    assert counted.problem.forward_hops[0].latency_ns == 1


def test_pieces_of_a_weight_grad_are_counted_exactly() -> None:
    problem = Problem.uniform(
        traversal="ud",
        stages=1,
        microbatches=1,
        forward_ms=0.00001,
        input_grad_ms=0.00001,
        weight_grad_ms=0.00001,
        weight_grad_pieces=4,
    )  # 10 ns in pieces of 4, 2, 2 and 2
    counted = in_ticks(problem, 30)
    assert (counted.tick_ns, counted.problem.costs[0][0].weight_grad_ns) == (2, 5)


def test_all_zero_durations_have_a_tick() -> None:
    assert in_ticks(two_stages(forward_ms=0, input_grad_ms=0, weight_grad_ms=0), 0).tick_ns == 1


@pytest.mark.parametrize("forward_ms", [0.0004, 600_000.000_001])
def test_tiny_and_huge_times_are_solved_to_the_optimum(forward_ms: float) -> None:
    """F = D = W, no delay, two stages: n(F + D + W) + F is the bound and reached."""
    times = dict.fromkeys(("forward_ms", "input_grad_ms", "weight_grad_ms"), forward_ms)
    certificate = solve(two_stages(**times), "cross_ud", time_limit_s=10).certificate
    assert certificate.makespan_ns == 10 * round(forward_ms * 1_000_000)
    assert certificate.optimal


@settings(max_examples=60, deadline=None)
@given(problem=problems(traversals=("ud",), pieces=(1, 3), data_parallel=False), most_ticks=st.integers(1, 20))
def test_rounded_down_no_schedule_gets_longer(problem: Problem, most_ticks: int) -> None:
    schedule = Schedule(
        traversal="ud",
        stages=problem.stages,
        chunks=1,
        microbatches=problem.microbatches,
        orders=one_at_a_time(problem),
    )
    most, ticks.MOST_TICKS = ticks.MOST_TICKS, most_ticks
    try:
        counted = in_ticks(problem, 200)
    finally:
        ticks.MOST_TICKS = most
    true = simulate_reference(problem, schedule).makespan_ns
    rounded = simulate_reference(counted.problem, schedule).makespan_ns * counted.tick_ns
    assert rounded <= true <= rounded + counted.error_ns


def test_a_bound_in_coarse_ticks_is_valid_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """38/46/21 counted in ticks of 10 ms: CP-SAT's bound stays below the optimum, 1105 ms at 4 x 8."""
    monkeypatch.setattr(ticks, "MOST_TICKS", 120)
    problem = Problem.uniform(
        traversal="ud",
        stages=4,
        microbatches=8,
        sites=2,
        forward_ms=38,
        input_grad_ms=46,
        weight_grad_ms=21,
        latency_ms=9.5,
        serialisation_ms=9.5,
        memory_microbatches=4,
    )
    counted = in_ticks(problem, 1_105_000_000)
    assert counted.tick_ns > 500_000
    certificate = solve(problem, "cross_ud", time_limit_s=5).certificate
    assert certificate.makespan_ns == 1_105_000_000
    assert certificate.lower_bound_ns <= 1_105_000_000
