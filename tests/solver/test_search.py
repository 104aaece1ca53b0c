"""Policy search: valid within memory, deterministic, never worse than its start, at optima proven elsewhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosspipe.errors import Infeasible, UsageError
from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.schedule import Block, Schedule, check, simulate
from crosspipe.solver.bounds import lower_bound
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


def any_problem(seed: int) -> Problem:
    """Heterogeneous, tight memory, recomputation, shared wires, DP."""
    rng = random.Random(seed)
    traversal = rng.choice(("ud", "wave", "loop"))
    stages, n = rng.randint(1, 5), rng.randint(1, 9)
    chunks = {"ud": 1, "wave": 2, "loop": rng.choice((2, 3))}[traversal]

    def cost() -> BlockCost:
        keep, take = rng.randint(0, 4), rng.choice((0, 0, 3))
        by_d = rng.randint(0, keep + take)
        return BlockCost(
            forward_ns=rng.randint(0, 9),
            input_grad_ns=rng.randint(0, 9),
            weight_grad_ns=rng.randint(0, 9),
            forward_keep_bytes=keep,
            input_grad_take_bytes=take,
            input_grad_release_bytes=by_d,
            weight_grad_release_bytes=keep + take - by_d,
        )

    def hop() -> Hop:
        wire = rng.choice((None, "a", "b"))
        return Hop(latency_ns=rng.choice((0, 7)), serialisation_ns=rng.choice((0, 1, 9)), wire=wire)

    costs = tuple(tuple(cost() for _ in range(chunks)) for _ in range(stages))
    needs = [
        max(sum(c.forward_keep_bytes for c in row[: i + 1]) + c.input_grad_take_bytes for i, c in enumerate(row))
        for row in costs
    ]
    inside = [stages == 1 or (traversal == "wave" and k == stages - 1) for k in range(stages * chunks - 1)]
    gather = rng.random() < 0.5
    parallel = tuple(
        tuple(DataParallel(reduce=hop(), gather=hop() if gather else None) for _ in range(chunks))
        for _ in range(stages)
    )
    return Problem(
        traversal=traversal,
        stages=stages,
        chunks=chunks,
        microbatches=n,
        costs=costs,
        forward_hops=tuple(Hop() if i else hop() for i in inside),
        backward_hops=tuple(Hop() if i else hop() for i in inside),
        activation_limit_bytes=tuple(rng.choice((need, need + 2, need + 9, None)) for need in needs),
        sites=tuple(range(stages)),
        data_parallel=parallel if rng.random() < 0.3 else (),
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_is_valid_on_any_problem_and_not_below_the_bound(seed: int) -> None:
    problem = any_problem(seed)
    schedule = policy_search(problem, evaluations=60, seed=seed)
    assert check(problem, schedule) == []
    assert simulate(problem, schedule).makespan_ns >= lower_bound(problem).value_ns


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
