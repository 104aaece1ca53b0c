"""Random heterogeneous problems for hypothesis: uneven stages, any memory split, links that queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.problem.traversal import place_of

TIMES = st.integers(0, 9)


@st.composite
def block_costs(draw: st.DrawFn, fused: bool = False) -> BlockCost:
    keep, take = draw(st.integers(1, 6)), draw(st.sampled_from([0, 0, 1, 3]))
    by_input_grad = draw(st.integers(0, keep + take))
    return BlockCost(
        forward_ns=draw(TIMES),
        input_grad_ns=draw(TIMES),
        weight_grad_ns=draw(TIMES),
        fused_backward_ns=draw(st.none() | st.integers(0, 18)) if fused else None,
        forward_keep_bytes=keep,
        input_grad_take_bytes=take,
        input_grad_release_bytes=by_input_grad,
        weight_grad_release_bytes=keep + take - by_input_grad,
    )


@st.composite
def random_problems(
    draw: st.DrawFn,
    traversal: str = "ud",
    stages: tuple[int, int] = (1, 4),
    microbatches: tuple[int, int] = (1, 6),
    pieces: tuple[int, ...] = (1,),
    data_parallel: bool = False,
    wire: str | None = None,
    fused: bool = False,
) -> Problem:
    """A feasible Problem; limits are between one microbatch and all of them.

    Every boundary has its own wires, or none, and so has the data parallelism of a (stage, chunk); with `wire` all of
    that shares this one.
    """
    p, n = draw(st.integers(*stages)), draw(st.integers(*microbatches))
    chunks = 1 if traversal == "ud" else 2
    costs = tuple(tuple(draw(block_costs(fused=fused)) for _ in range(chunks)) for _ in range(p))
    positions = p * chunks

    def hop(name: str) -> Hop:
        own = wire or draw(st.sampled_from([None, name]))
        return Hop(latency_ns=draw(TIMES), serialisation_ns=draw(st.integers(0, 6)), wire=own)

    def boundary(here: int, there: int) -> Hop:
        a, b = (place_of(traversal, p, x)[0] for x in (here, there))
        return Hop() if a == b else hop(f"{a}>{b}")

    def parallel(stage: int, chunk: int) -> DataParallel:
        reduce, gather = (hop(wire or f"dp{stage}.{chunk}") for _ in range(2))
        return DataParallel(reduce=reduce, gather=draw(st.sampled_from([None, gather])))

    floors = [
        max(sum(c.forward_keep_bytes for c in row[: i + 1]) + c.input_grad_take_bytes for i, c in enumerate(row))
        for row in costs
    ]
    limits = tuple(draw(st.none() | st.integers(floor, floor * n)) for floor in floors)
    return Problem(
        traversal=traversal,
        stages=p,
        chunks=chunks,
        microbatches=n,
        costs=costs,
        forward_hops=tuple(boundary(k, k + 1) for k in range(positions - 1)),
        backward_hops=tuple(boundary(k + 1, k) for k in range(positions - 1)),
        activation_limit_bytes=limits,
        sites=tuple(range(p)),
        weight_grad_pieces=draw(st.sampled_from(pieces)),
        data_parallel=tuple(tuple(parallel(s, c) for c in range(chunks)) for s in range(p)) if data_parallel else (),
    )


@pytest.fixture(scope="session")
def problems() -> Callable[..., st.SearchStrategy[Problem]]:
    """`data.draw(problems(...))`: a fixture, since test modules cannot import one another."""
    return random_problems
