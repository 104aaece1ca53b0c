"""`cross_ud_sub`: hand-worked plans, what it plans is what the model says, and it always fits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from random_problems import problems

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.schedule import Schedule, simulate_reference
from crosspipe.solver import solve
from crosspipe.solver.greedy import cross_ud_sub, greedy_plan


def short(schedule: Schedule) -> list[str]:
    return [" ".join(f"{b.kind}{b.microbatch}" for b in order) for order in schedule.orders]


def two_stages(**changes: float) -> Problem:
    times = {"forward_ms": 2, "input_grad_ms": 2, "weight_grad_ms": 2, "latency_ms": 1, "memory_microbatches": 2}
    return Problem.uniform(traversal="ud", stages=2, sites=2, **{"microbatches": 2, **times, **changes})


def test_by_hand_two_stages() -> None:
    """Stage 0: F0 0-2, F1 2-4, D0 arrives 8, D1 at 12, W0 between. Stage 1: F0 3-5, D0 -7, F1 -9, D1 -11, W0, W1."""
    schedule = solve(two_stages(), "cross_ud_sub", pieces=1)
    assert short(schedule) == ["F0 F1 D0 W0 D1 W1", "F0 D0 F1 D1 W0 W1"]
    assert schedule.certificate.makespan_ns == 16_000_000
    assert schedule.ideal_makespan_ns == 16_000_000


def test_by_hand_messages_queue_for_the_wire() -> None:
    """The second F is ready at 4 while the wire is busy till 5; it arrives at 9, one after D0 of stage 1 has ended."""
    schedule = solve(two_stages(serialisation_ms=3), "cross_ud_sub", pieces=1)
    # stage 1: F0 6-8, D0 8-10, F1 10-12, D1 12-14, W0, W1 -18; stage 0: D0 arrives 14 -16, W0 -18, D1 18-20, W1 -22
    assert schedule.certificate.makespan_ns == 22_000_000


def test_by_hand_memory_of_one_microbatch_calls_w_before_the_next_f() -> None:
    """One microbatch at a time: each waits for W of the one before on stage 0."""
    schedule = solve(two_stages(memory_microbatches=1), "cross_ud_sub", pieces=1)
    assert short(schedule) == ["F0 D0 W0 F1 D1 W1", "F0 D0 W0 F1 D1 W1"]
    # F0 0-2, F0 3-5, D0 5-7, D0 8-10, W0 -12, and the same again
    assert schedule.certificate.makespan_ns == 24_000_000


def test_ideal_plan_interrupts_w_between_pieces() -> None:
    """One stage pair, W of 8 ms: whole, stage 0 starts W0 at 9 and D1 (there at 12) waits till 17; in 8 pieces not."""
    problem = two_stages(weight_grad_ms=8)
    # stage 0: D0 8-10, then W0 in pieces of 1 from 10, D1 arrives 12 -14, rest of W: 10 + 8 + 2 + 8 = 28 either way
    schedule = solve(problem, "cross_ud_sub", pieces=8)
    assert schedule.ideal_makespan_ns == 28_000_000
    executable = solve(two_stages(weight_grad_ms=8), "cross_ud_sub", pieces=1)
    assert short(executable)[0] == "F0 F1 D0 W0 D1 W1"
    cut = solve(
        Problem.uniform(
            traversal="ud",
            stages=2,
            microbatches=2,
            sites=2,
            forward_ms=2,
            input_grad_ms=2,
            weight_grad_ms=8,
            latency_ms=1,
            weight_grad_pieces=8,
        ),
        "cross_ud_sub",
    )
    assert short(cut)[0] == "F0 F1 D0 W0 W0 D1" + " W0" * 6 + " W1" * 8


def test_ideal_plan_lets_w_between_the_pieces_of_an_f_where_memory_forbids_the_next() -> None:
    """Two microbatches fit. Stage 0: F0, F1 till 4, D0 arrives 10 -14, then half of F2 fits: 14-15, W0 15-19, the other
    half -20; with F whole, W0 begins at 14, D1 arrives at 16 between its pieces, and F2 ends at 22.

    F2 arrives 21: F2 -23, D2 -27 on stage 1; arrives 28: D2 -32, W2 -36 on stage 0. With F whole all that is 2 later.
    """
    problem = two_stages(microbatches=3, input_grad_ms=4, weight_grad_ms=4)
    assert greedy_plan(problem, (2, 2, 2)).makespan_ns == 36_000_000
    assert greedy_plan(problem, (1, 1, 2)).makespan_ns == 38_000_000


def test_data_parallel_gather_and_reduce_are_in_the_plan() -> None:
    cost = BlockCost(
        forward_ns=1,
        input_grad_ns=1,
        weight_grad_ns=1,
        forward_keep_bytes=2,
        input_grad_release_bytes=1,
        weight_grad_release_bytes=1,
    )
    problem = Problem(
        traversal="ud",
        stages=1,
        microbatches=2,
        costs=((cost,),),
        forward_hops=(),
        backward_hops=(),
        activation_limit_bytes=(None,),
        sites=(0,),
        data_parallel=((DataParallel(reduce=Hop(latency_ns=1, serialisation_ns=3), gather=Hop(latency_ns=2)),),),
    )
    assert greedy_plan(problem, (1, 1, 1)).makespan_ns == 2 + 6 + 4


@settings(max_examples=200, deadline=None)
@given(problem=problems(traversals=("ud",), pieces=(1, 3), wires=("own",), data_parallel=False))
def test_the_plan_is_what_the_model_says_and_fits(problem: Problem) -> None:
    """No wire is shared by two senders here, so earliest free window and first come first served agree."""
    found = cross_ud_sub(problem, pieces=2)
    schedule = Schedule(
        traversal="ud", stages=problem.stages, chunks=1, microbatches=problem.microbatches, orders=found.orders
    )
    timeline = simulate_reference(problem, schedule)
    planned = greedy_plan(problem, (1, 1, problem.weight_grad_pieces)).makespan_ns
    assert timeline.makespan_ns == planned
    for need, limit in zip(timeline.peak_memory_bytes(), problem.activation_limit_bytes, strict=True):
        assert limit is None or need <= limit
    for order in found.orders:
        assert len(set(order)) == len(order) == problem.microbatches * (2 + problem.weight_grad_pieces)


def test_the_makespan_alone_is_that_of_the_recorded_plan() -> None:
    problem = two_stages(microbatches=5, weight_grad_ms=3, input_grad_ms=4)
    for cut in ((1, 1, 1), (1, 1, 4), (4, 4, 4)):
        alone = greedy_plan(problem, cut, record=False)
        assert (alone.makespan_ns, alone.kind.size) == (greedy_plan(problem, cut).makespan_ns, 0)


@pytest.mark.parametrize("pieces", [1, 2, 4, 8, 16])
def test_no_delay_and_memory_to_spare_reaches_the_closed_bound(pieces: int) -> None:
    """32 microbatches, 8 stages, memory 16: n(F+D+W) + (p-1)F, the work of the last stage and its head."""
    problem = Problem.uniform(
        traversal="ud",
        stages=8,
        microbatches=32,
        forward_ms=38,
        input_grad_ms=46,
        weight_grad_ms=21,
        memory_microbatches=16,
    )
    schedule = solve(problem, "cross_ud_sub", pieces=pieces)
    assert schedule.ideal_makespan_ns == schedule.certificate.makespan_ns == (32 * 105 + 7 * 38) * 1_000_000
