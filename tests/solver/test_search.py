"""Policy search: valid within memory, deterministic, never worse than its start, at optima proven elsewhere."""

from __future__ import annotations

import pytest

from crosspipe.errors import Infeasible, UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, check, simulate
from crosspipe.solver.search import policy_search


def uniform(traversal: str = "ud", latency_ms: float = 0.0, serialisation_ms: float = 0.0) -> Problem:
    return Problem.uniform(
        traversal=traversal,
        stages=4,
        microbatches=8,
        sites=2,
        forward_ms=200,
        input_grad_ms=200,
        weight_grad_ms=200,
        latency_ms=latency_ms,
        serialisation_ms=serialisation_ms,
        memory_microbatches=4,
    )


@pytest.mark.parametrize(("latency_ms", "optimum_ms"), [(0, 5400), (100, 5800), (200, 6200), (400, 7000)])
def test_finds_the_known_optimum(latency_ms: float, optimum_ms: int) -> None:
    # optima proved by two solvers, see tests/reference
    problem = uniform(latency_ms=latency_ms)
    schedule = policy_search(problem, evaluations=20_000, target_ns=optimum_ms * 1_000_000)
    assert simulate(problem, schedule).makespan_ns == optimum_ms * 1_000_000
    assert check(problem, schedule) == []


@pytest.mark.parametrize("traversal", ["ud", "wave", "loop"])
def test_a_seed_gives_the_same_schedule(traversal: str) -> None:
    problem = uniform(traversal, 100, 300)
    first, second = (policy_search(problem, evaluations=2000, seed=3) for _ in range(2))
    assert first.orders == second.orders
    assert first.messages == second.messages


def test_never_worse_than_its_start() -> None:
    problem = Problem.uniform(stages=2, microbatches=4, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    best = policy_search(problem, evaluations=5000)
    again = policy_search(problem, evaluations=1, start=[best])
    assert simulate(problem, again).makespan_ns <= simulate(problem, best).makespan_ns


def test_ignores_a_start_that_breaks_a_limit() -> None:
    problem = Problem.uniform(
        stages=1, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1, memory_microbatches=1
    )
    blocks = [Block(kind, 0, k) for kind in "FDW" for k in range(2)]  # holds two microbatches
    greedy = Schedule(traversal="ud", stages=1, chunks=1, microbatches=2, orders=(tuple(blocks),))
    found = policy_search(problem, evaluations=10, start=[greedy])
    assert check(problem, found) == []


def test_reaches_the_wave_bound_of_a_slow_wire_only_by_choosing_message_order() -> None:
    problem = uniform("wave", 400, 400)
    schedule = policy_search(problem, evaluations=20_000)
    assert check(problem, schedule) == []
    assert schedule.messages


def test_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="budget_s"):
        policy_search(uniform())
    small = Problem.uniform(
        stages=2, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1, memory_microbatches=0.5
    )
    with pytest.raises(Infeasible, match=r"activation_limit_bytes\[0\]"):
        policy_search(small, evaluations=10)
