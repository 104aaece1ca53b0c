"""Random Problems, and schedules of them: uneven stages, zero-length blocks, any memory split, links that queue, DP.

A seed makes a problem; hypothesis draws the seed. Tests say what they can take by options.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.problem.traversal import place_of
from crosspipe.schedule import Block, Message, Schedule, simulate_reference

WIRES = ("0>1", "1>0", "shared", None)
SEEDS = st.integers(0, 2**40)


def random_cost(rng: random.Random, shortest_ns: int = 0, fused: bool = True, longest_ns: int = 9) -> BlockCost:
    """W may exceed D; D may take memory (recomputation); a fused B may be shorter or longer than D and W."""
    keep, take = rng.randint(0, 6), rng.choice((0, 0, 1, 3))
    by_input_grad = rng.randint(0, keep + take)
    return BlockCost(
        forward_ns=rng.randint(shortest_ns, longest_ns),
        input_grad_ns=rng.randint(shortest_ns, longest_ns),
        weight_grad_ns=rng.randint(0, longest_ns),
        fused_backward_ns=rng.choice((None, rng.randint(shortest_ns, 2 * longest_ns))) if fused else None,
        forward_keep_bytes=keep,
        input_grad_take_bytes=take,
        input_grad_release_bytes=by_input_grad,
        weight_grad_release_bytes=keep + take - by_input_grad,
    )


def random_problem(
    rng: random.Random,
    *,
    traversals: Sequence[str] = ("ud", "wave", "loop"),
    stages: tuple[int, int] = (1, 4),
    microbatches: tuple[int, int] = (1, 5),
    most_chunks: int = 3,
    pieces: Sequence[int] = (1,),
    wires: Sequence[str] = ("own", "any", "shared"),
    data_parallel: bool = True,
    limited: bool = True,
    fused: bool = True,
    shortest_ns: int | None = None,
    longest_ns: int = 9,
) -> Problem:
    """A feasible Problem; counts are drawn from (least, most), what is a sequence from its entries.

    `wires`: every boundary and every data-parallel group has its "own", or none; "any" of four; one "shared" by all.
    `limited`: memory limits between one microbatch and all of them, or none; else never one. `data_parallel` and
    `fused` allow what they say. F and D take at least `shortest_ns` (None: 0 or 1), nothing more than `longest_ns`.
    """
    traversal, p, n = rng.choice(traversals), rng.randint(*stages), rng.randint(*microbatches)
    chunks = {"ud": 1, "wave": 2, "loop": rng.randint(2, max(2, most_chunks))}[traversal]
    shortest = rng.choice((0, 1, 1)) if shortest_ns is None else shortest_ns
    alike = rng.random() < 0.2
    same = random_cost(rng, shortest, fused, longest_ns)
    costs = tuple(
        tuple(same if alike else random_cost(rng, shortest, fused, longest_ns) for _ in range(chunks)) for _ in range(p)
    )
    sharing, names = rng.choice(wires), rng.sample(WIRES, rng.randint(1, len(WIRES)))
    latencies = rng.choice(((0,), (0, 1, 5), (0, longest_ns)))

    def hop(own: str) -> Hop:
        wire = {"own": rng.choice((None, own)), "any": rng.choice(names), "shared": "shared"}[sharing]
        return Hop(latency_ns=rng.choice(latencies), serialisation_ns=rng.randint(0, 6), wire=wire)

    def boundary(here: int, there: int) -> Hop:
        a, b = (place_of(traversal, p, position)[0] for position in (here, there))
        return Hop() if a == b else hop(f"{here}>{there}")

    gathers = rng.random() < 0.5

    def replicas(stage: int, chunk: int) -> DataParallel:
        own = f"dp{stage}.{chunk}"
        return DataParallel(reduce=hop(own), gather=hop(own) if gathers else None)

    floors = [
        max(sum(c.forward_keep_bytes for c in row[: i + 1]) + c.input_grad_take_bytes for i, c in enumerate(row))
        for row in costs
    ]
    boundaries = range(p * chunks - 1)
    return Problem(
        traversal=traversal,
        stages=p,
        chunks=chunks,
        microbatches=n,
        costs=costs,
        forward_hops=tuple(boundary(k, k + 1) for k in boundaries),
        backward_hops=tuple(boundary(k + 1, k) for k in boundaries),
        activation_limit_bytes=tuple(rng.choice((None, rng.randint(f, f * n))) if limited else None for f in floors),
        sites=tuple(stage * 2 // p for stage in range(p)),
        weight_grad_pieces=rng.choice(pieces),
        data_parallel=tuple(tuple(replicas(s, c) for c in range(chunks)) for s in range(p))
        if data_parallel and rng.random() < 0.3
        else (),
    )


def problems(**options: object) -> st.SearchStrategy[Problem]:
    """Problems of `random_problem` with these options."""
    return st.builds(lambda seed: random_problem(random.Random(seed), **options), SEEDS)


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
        for _ in range(rng.choice((0, 1, 4))):
            i = rng.randrange(len(order))
            order[i - 1], order[i] = order[i], order[i - 1]
    listed = {wire: tuple(order) for wire, order in served.items() if rng.random() < 0.7}
    return Schedule(**{**_fields(schedule), "messages": listed})


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
    return Schedule(**{**_fields(schedule), "orders": tuple(tuple(order) for order in orders)})


def _fields(schedule: Schedule) -> dict[str, object]:
    return {name: getattr(schedule, name) for name in schedule.__struct_fields__}


def _case(seed: int, runnable: bool) -> tuple[Problem, Schedule]:
    rng = random.Random(seed)
    problem = random_problem(rng, limited=False, pieces=(1, 1, 3))
    schedule = random_schedule(rng, problem)
    if not runnable and rng.random() < 0.4:
        schedule = with_listed_messages(rng, problem, schedule)
    if not runnable and rng.random() < 0.3:
        schedule = perturbed(rng, schedule)
    return problem, schedule


CASES = st.builds(_case, SEEDS, st.just(False))  # (problem, schedule), complete or not, that may deadlock
RUNNABLE_CASES = st.builds(_case, SEEDS, st.just(True))  # complete, and run to their end; no message order listed
