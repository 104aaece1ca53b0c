"""CP-SAT's optimum is the optimum: reference values, brute force on tiny problems, never worse than the best static."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from random_problems import problems

from crosspipe.errors import Infeasible
from crosspipe.problem import BlockCost, Hop, Problem
from crosspipe.schedule import Block, Message, Schedule, check, kernel, simulate_reference
from crosspipe.solver import SCHEDULES, solve

Order = tuple[Block, ...]


def reference_problem(latency_ms: float, release_input_grad: float) -> Problem:
    return Problem.uniform(
        traversal="ud",
        stages=4,
        microbatches=8,
        sites=2,
        forward_ms=200,
        input_grad_ms=200,
        weight_grad_ms=200,
        latency_ms=latency_ms,
        memory_microbatches=4,
        release_input_grad=release_input_grad,
    )


@pytest.mark.parametrize(
    ("latency_ms", "release_input_grad", "optimum_ms"),
    [
        (0, 0.5, 5400),
        (100, 0.5, 5800),
        (200, 0.5, 6200),
        (400, 0.5, 7000),
        (100, 0.0, 5800),
        (400, 0.0, 7000),
        (100, 1.0, 5600),
        (400, 1.0, 6200),
    ],
)
def test_reference_optima_are_found_and_proven(latency_ms: float, release_input_grad: float, optimum_ms: int) -> None:
    certificate = solve(reference_problem(latency_ms, release_input_grad), "cross_ud", time_limit_s=20).certificate
    assert certificate.makespan_ns == optimum_ms * 1_000_000
    assert certificate.optimal


def chains(problem: Problem, stage: int, microbatch: int) -> list[Order]:
    """The ways to run one microbatch on a stage: B whole, or D and W apart, in the order the traversal forces.

    A W of no length loses nothing right after its D, that is in B.
    """
    pieces = problem.weight_grad_pieces
    visits = sorted(range(problem.chunks), key=lambda chunk: problem.position(stage, chunk))
    forward = [Block("F", chunk, microbatch) for chunk in visits]
    ways: list[list[Block]] = [forward]
    for chunk in reversed(visits):
        split = [Block("D", chunk, microbatch)]
        split += [Block("W", chunk, microbatch, piece, pieces) for piece in range(pieces)]
        cost, fused = problem.costs[stage][chunk], [Block("B", chunk, microbatch)]
        backwards = [fused] if cost.weight_grad_ns == 0 and cost.fused_backward_ns is None else [split, fused]
        ways = [way + backward for way in ways for backward in backwards]
    return [tuple(way) for way in ways]


def interleavings(rows: list[Order]) -> Iterator[Order]:
    if not any(rows):
        yield ()
    for i, row in enumerate(rows):
        if row:
            for rest in interleavings([*rows[:i], row[1:], *rows[i + 1 :]]):
                yield (row[0], *rest)


def fitting_orders(problem: Problem, stage: int) -> list[Order]:
    """Every order of a stage that fits its memory, microbatches in any order."""
    limit = problem.activation_limit_bytes[stage]
    fitting = []
    for choice in product(*(chains(problem, stage, m) for m in range(problem.microbatches))):
        for order in interleavings(list(choice)):
            held = peak = 0
            for block in order:
                cost = problem.costs[stage][block.chunk]
                held += cost.take_bytes(block.kind) if block.piece == 0 else 0
                peak = max(peak, held)
                held -= cost.release_bytes(block.kind, block.piece, block.pieces)
            if limit is None or peak <= limit:
                fitting.append(order)
    return fitting


def brute_force_ns(problem: Problem, message_orders: Sequence[dict[str, Sequence[Message]]] = ({},)) -> int:
    """The shortest makespan over every combination of stage orders that fits, and of the given message orders."""
    compiled, best = kernel.compile_problem(problem), kernel.NEVER
    for orders in product(*(fitting_orders(problem, stage) for stage in range(problem.stages))):
        for messages in message_orders:
            schedule = Schedule(
                traversal=problem.traversal,
                stages=problem.stages,
                chunks=problem.chunks,
                microbatches=problem.microbatches,
                orders=orders,
                messages=messages,
            )
            makespan, _ = kernel.evaluate(compiled, kernel.encode(problem, schedule))
            if makespan != kernel.DEADLOCKED:
                best = min(best, makespan)
    return best


@settings(max_examples=20, deadline=None)
@given(problem=problems(traversals=("ud",), stages=(2, 2), microbatches=(2, 2), wires=("own",)))
def test_two_stages_two_microbatches_against_brute_force(problem: Problem) -> None:
    certificate = solve(problem, "cross_ud", time_limit_s=10).certificate
    assert certificate.makespan_ns == brute_force_ns(problem)
    assert certificate.optimal


@settings(max_examples=20, deadline=None)
@given(problem=problems(traversals=("ud",), stages=(1, 1), microbatches=(2, 2), pieces=(2,), data_parallel=False))
def test_one_stage_with_pieces_against_brute_force(problem: Problem) -> None:
    """Recomputation and uneven releases on one stage, where memory decides."""
    certificate = solve(problem, "cross_ud", time_limit_s=10).certificate
    assert certificate.makespan_ns == brute_force_ns(problem)


@settings(max_examples=25, deadline=None)
@given(problem=problems(stages=(1, 3), microbatches=(1, 4), most_chunks=2, pieces=(1, 2)))
def test_random_problems_get_valid_schedules_no_worse_than_any_static(problem: Problem) -> None:
    traversal = problem.traversal
    schedule = solve(problem, f"cross_{traversal}", time_limit_s=1)
    assert check(problem, schedule) == []
    assert schedule.certificate.lower_bound_ns <= schedule.certificate.makespan_ns
    assert schedule.certificate.makespan_ns == simulate_reference(problem, schedule).makespan_ns
    assert not re.search("dropped|failed|missing", schedule.certificate.explanation)
    for name, entry in SCHEDULES.items():
        if entry.family in ("static", "generated", "greedy") and entry.traversal == traversal:
            try:
                static = solve(problem, name).certificate.makespan_ns
            except Infeasible:
                continue
            assert schedule.certificate.makespan_ns <= static


@st.composite
def waves_that_share_a_wire(draw: st.DrawFn) -> Problem:
    """Two sites, two microbatches, W of no length: what is left is the order of F, D and messages."""
    cost = st.builds(
        BlockCost,
        forward_ns=st.integers(0, 9),
        input_grad_ns=st.integers(0, 9),
        weight_grad_ns=st.just(0),
        forward_keep_bytes=st.just(1),
        input_grad_release_bytes=st.just(1),
        weight_grad_release_bytes=st.just(0),
    )
    there, back = (
        Hop(latency_ns=draw(st.integers(0, 3)), serialisation_ns=draw(st.integers(0, 9)), wire=wire)
        for wire in ("0>1", "1>0")
    )
    return Problem(
        traversal="wave",
        stages=2,
        chunks=2,
        microbatches=2,
        costs=((draw(cost), draw(cost)), (draw(cost), draw(cost))),
        forward_hops=(there, Hop(), back),
        backward_hops=(back, Hop(), there),
        activation_limit_bytes=(draw(st.sampled_from([2, 3, None])),) * 2,
        sites=(0, 1),
    )


def both_message_orders() -> list[dict[str, Sequence[Message]]]:
    """Of the two messages whose order is open on each wire, the later microbatch's F and the earlier one's D."""
    wires = []
    for forward, backward in ((0, 3), (2, 1)):
        f0, f1, d0, d1 = (Message(k, p, m) for k, p in (("F", forward), ("D", backward)) for m in range(2))
        wires.append(((f0, f1, d0, d1), (f0, d0, f1, d1)))
    return [{"0>1": there, "1>0": back} for there in wires[0] for back in wires[1]]


@settings(max_examples=8, deadline=None)
@given(problem=waves_that_share_a_wire())
def test_wave_with_message_orders_against_brute_force(problem: Problem) -> None:
    certificate = solve(problem, "cross_wave", time_limit_s=10).certificate
    assert certificate.makespan_ns == brute_force_ns(problem, both_message_orders())
    assert certificate.optimal
