"""Random problems and schedules: heterogeneous, zero-length blocks, shared wires, pieces, DP, listed message orders."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.schedule import Block, Message, Schedule, simulate_reference

WIRES = ("0>1", "1>0", "shared", None)


def random_cost(rng: random.Random, shortest: int) -> BlockCost:
    keep, take, returned = rng.randint(0, 6), rng.choice([0, 0, 3]), rng.randint(0, 6)
    returned = min(returned, keep + take)
    return BlockCost(
        forward_ns=rng.randint(shortest, 4),
        input_grad_ns=rng.randint(shortest, 4),
        weight_grad_ns=rng.randint(0, 4),
        fused_backward_ns=rng.choice([None, rng.randint(shortest, 6)]),
        forward_keep_bytes=keep,
        input_grad_take_bytes=take,
        input_grad_release_bytes=returned,
        weight_grad_release_bytes=keep + take - returned,
    )


def random_problem(rng: random.Random) -> Problem:
    traversal = rng.choice(["ud", "wave", "loop"])
    stages, chunks = rng.randint(1, 4), {"ud": 1, "wave": 2, "loop": rng.randint(2, 3)}[traversal]
    shortest = rng.choice([0, 1, 1])
    wires = rng.sample(WIRES, rng.randint(1, len(WIRES)))

    def hop() -> Hop:
        return Hop(latency_ns=rng.choice([0, 1, 5]), serialisation_ns=rng.randint(0, 3), wire=rng.choice(wires))

    shape = Problem.uniform(
        traversal=traversal,
        stages=stages,
        chunks=chunks,
        microbatches=1,
        forward_ms=1,
        input_grad_ms=1,
        weight_grad_ms=1,
    )
    inside = [shape.place(k)[0] == shape.place(k + 1)[0] for k in range(shape.positions - 1)]
    replicas: tuple[tuple[DataParallel, ...], ...] = ()
    if rng.random() < 0.3:
        gathers = rng.random() < 0.5
        replicas = tuple(
            tuple(DataParallel(reduce=hop(), gather=hop() if gathers else None) for _ in range(chunks))
            for _ in range(stages)
        )
    return Problem(
        traversal=traversal,
        stages=stages,
        chunks=chunks,
        microbatches=rng.randint(1, 5),
        costs=tuple(tuple(random_cost(rng, shortest) for _ in range(chunks)) for _ in range(stages)),
        forward_hops=tuple(Hop() if same else hop() for same in inside),
        backward_hops=tuple(Hop() if same else hop() for same in inside),
        activation_limit_bytes=(None,) * stages,
        sites=tuple(stage * 2 // stages for stage in range(stages)),
        weight_grad_pieces=rng.choice([1, 1, 3]),
        data_parallel=replicas,
    )


def random_schedule(rng: random.Random, problem: Problem) -> Schedule:
    """Any complete order that can run: blocks are drawn at random among those whose inputs were drawn before."""
    orders: list[list[Block]] = [[] for _ in range(problem.stages)]
    ready = [("F", 0, mb) for mb in range(problem.microbatches)]
    fused = rng.random() < 0.2
    while ready:
        kind, position, mb = ready.pop(rng.randrange(len(ready)))
        stage, chunk = problem.place(position)
        pieces = problem.weight_grad_pieces if kind == "W" and rng.random() < 0.7 else 1
        orders[stage] += [Block(kind, chunk, mb, piece, pieces) for piece in range(pieces)]
        backward = "B" if fused and rng.random() < 0.5 else "D"
        if kind == "F":
            ready.append(("F", position + 1, mb) if position + 1 < problem.positions else (backward, position, mb))
        elif kind in "DB":
            ready += [(backward, position - 1, mb)] if position else []
            ready += [("W", position, mb)] if kind == "D" else []
    return Schedule(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        orders=tuple(tuple(order) for order in orders),
    )


def with_listed_messages(rng: random.Random, problem: Problem, schedule: Schedule) -> Schedule:
    """The same with some wires' messages listed as they would be served, a few of them exchanged."""
    served: dict[str, list[Message]] = {}
    for timed in sorted(simulate_reference(problem, schedule).messages, key=lambda m: (m.start_ns, m.served_ns)):
        if timed.wire is not None:
            served.setdefault(timed.wire, []).append(timed.message)
    for order in served.values():
        for _ in range(rng.choice([0, 1, 4])):
            i = rng.randrange(len(order))
            order[i - 1], order[i] = order[i], order[i - 1]
    listed = {wire: tuple(order) for wire, order in served.items() if rng.random() < 0.7}
    return Schedule(**{**fields(schedule), "messages": listed})


def fields(schedule: Schedule) -> dict[str, object]:
    return {name: getattr(schedule, name) for name in schedule.__struct_fields__}


def perturbed(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same with a few neighbours exchanged, or one block dropped: it may not finish."""
    orders = [list(order) for order in schedule.orders]
    for _ in range(rng.randint(1, 3)):
        order = rng.choice(orders)
        i = rng.randrange(len(order))
        if rng.random() < 0.2 and len(order) > 1:
            del order[i]
        else:
            order[i - 1], order[i] = order[i], order[i - 1]
    return Schedule(**{**fields(schedule), "orders": tuple(tuple(order) for order in orders)})


@st.composite
def _cases(draw: st.DrawFn, runnable: bool = False) -> tuple[Problem, Schedule]:
    rng = random.Random(draw(st.integers(0, 2**40)))
    problem = random_problem(rng)
    schedule = random_schedule(rng, problem)
    if not runnable and rng.random() < 0.4:
        schedule = with_listed_messages(rng, problem, schedule)
    if not runnable and rng.random() < 0.3:
        schedule = perturbed(rng, schedule)
    return problem, schedule


@pytest.fixture(scope="session")
def cases() -> st.SearchStrategy[tuple[Problem, Schedule]]:
    """(problem, schedule) pairs, complete or not, that may deadlock."""
    return _cases()


@pytest.fixture(scope="session")
def runnable_cases() -> st.SearchStrategy[tuple[Problem, Schedule]]:
    """(problem, schedule) pairs that are complete and run to their end; no message order listed."""
    return _cases(runnable=True)
