"""The compiled model and its readable twin, against makespans worked out by others or by hand."""

from __future__ import annotations

import msgspec
import pytest

from crosspipe.errors import Deadlock, FieldError
from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.schedule import Block, Message, Schedule, simulate, simulate_reference

MODELS = pytest.mark.parametrize("model", [simulate, simulate_reference])


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B with fused B, as in Narayanan et al. (SC'21)."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, microbatches)
        order = [Block("F", 0, mb) for mb in range(ahead)]
        for mb in range(microbatches):
            order.append(Block("B", 0, mb))
            if mb + ahead < microbatches:
                order.append(Block("F", 0, mb + ahead))
        orders.append(tuple(order))
    return Schedule(traversal="ud", stages=stages, chunks=1, microbatches=microbatches, orders=tuple(orders))


@MODELS
@pytest.mark.parametrize(("latency", "makespan"), [(0, 6600), (100, 7400), (200, 8200), (400, 9800)])
def test_1f1b_reference_makespans(model, latency, makespan):
    problem = Problem.uniform(
        stages=4, microbatches=8, sites=2, forward_ms=200, input_grad_ms=200, weight_grad_ms=200, latency_ms=latency
    )
    timeline = model(problem, one_f_one_b(4, 8))
    assert timeline.makespan_ns == makespan * 1_000_000
    # stage s of 1F1B holds p - s microbatches (tests/reference/README.md: one microbatch is 2**20 bytes)
    assert timeline.peak_memory_bytes() == tuple((4 - s) << 20 for s in range(4))


def times(timeline, stage):
    return [(str(b.block), b.start_ns, b.end_ns) for b in timeline.blocks[stage]]


def small_problem(stages: int, microbatches: int, *, forward: Hop, backward: Hop | None = None, **changes) -> Problem:
    """F = 1, D = 2, W = 7 ns; F keeps 4 bytes, D returns 1, W 3."""
    cost = BlockCost(
        forward_ns=1,
        input_grad_ns=2,
        weight_grad_ns=7,
        forward_keep_bytes=4,
        input_grad_release_bytes=1,
        weight_grad_release_bytes=3,
    )
    arguments = {
        "traversal": "ud",
        "stages": stages,
        "microbatches": microbatches,
        "costs": ((cost,),) * stages,
        "forward_hops": (forward,) * (stages - 1),
        "backward_hops": (backward or forward,) * (stages - 1),
        "activation_limit_bytes": (None,) * stages,
        "sites": (0,) * stages,
        **changes,
    }
    return Problem(**arguments)


def orders(problem: Problem, *rows: str, messages: dict | None = None) -> Schedule:
    """`orders(problem, "F0 D0 W0", ...)`: one row a stage, chunk 0."""
    blocks = tuple(tuple(Block(word[0], 0, int(word[1:])) for word in row.split()) for row in rows)
    return Schedule(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=1,
        microbatches=problem.microbatches,
        orders=blocks,
        messages=messages or {},
    )


@MODELS
def test_messages_of_two_senders_queue_in_ready_order(model):
    problem = small_problem(3, 2, forward=Hop(serialisation_ns=2, wire="w"))
    timeline = model(problem, orders(problem, "F0 F1", "F0 F1", "F0 F1"))
    # F0 1-3 | F1 from stage 0, ready 2: 3-5 | F0 from stage 1, ready 4: 5-7 | F1 from stage 1, ready 6: 7-9
    assert [(m.message, m.ready_ns, m.start_ns, m.arrival_ns) for m in timeline.messages] == [
        (Message("F", 0, 0), 1, 1, 3),
        (Message("F", 0, 1), 2, 3, 5),
        (Message("F", 1, 0), 4, 5, 7),
        (Message("F", 1, 1), 6, 7, 9),
    ]
    assert times(timeline, 2) == [("F0 of chunk 0", 7, 8), ("F1 of chunk 0", 9, 10)]


@MODELS
def test_a_listed_order_is_served_strictly(model):
    problem = small_problem(3, 2, forward=Hop(serialisation_ns=2, wire="w"))
    listed = (Message("F", 0, 0), Message("F", 1, 0), Message("F", 0, 1), Message("F", 1, 1))
    timeline = model(problem, orders(problem, "F0 F1", "F0 F1", "F0 F1", messages={"w": listed}))
    # F1 from stage 0 is ready at 2 but waits behind F0 from stage 1: 4-6, then 6-8, then 9-11
    assert times(timeline, 2) == [("F0 of chunk 0", 6, 7), ("F1 of chunk 0", 11, 12)]


@MODELS
def test_equal_ready_times_go_by_microbatch(model):
    problem = small_problem(2, 2, forward=Hop(serialisation_ns=3, wire="w"))
    free = msgspec.structs.replace(problem.costs[0][0], forward_ns=0)
    problem = msgspec.structs.replace(problem, costs=((free,), (free,)))
    timeline = model(problem, orders(problem, "F1 F0", "F0 F1"))
    assert times(timeline, 1) == [("F0 of chunk 0", 3, 3), ("F1 of chunk 0", 6, 6)]


@MODELS
def test_gather_precedes_and_reduce_follows(model):
    replica = DataParallel(
        gather=Hop(latency_ns=5, serialisation_ns=2, wire="w"), reduce=Hop(latency_ns=1, serialisation_ns=4, wire="w")
    )
    problem = small_problem(1, 2, forward=Hop(), data_parallel=((replica,),))
    timeline = model(problem, orders(problem, "F0 D0 F1 W0 D1 W1"))
    assert timeline.blocks[0][0].start_ns == 7
    assert timeline.blocks[0][-1].end_ns == 7 + 2 * (1 + 2 + 7)
    assert timeline.makespan_ns == 27 + 4 + 1


@MODELS
def test_pieces_of_w_share_time_and_memory(model):
    problem = small_problem(1, 1, forward=Hop(), weight_grad_pieces=3)
    order = (Block("F", 0, 0), Block("D", 0, 0), *(Block("W", 0, 0, i, 3) for i in range(3)))
    schedule = Schedule(traversal="ud", stages=1, chunks=1, microbatches=1, orders=(order,))
    timeline = model(problem, schedule)
    assert [(b.start_ns, b.end_ns) for b in timeline.blocks[0]] == [(0, 1), (1, 3), (3, 6), (6, 8), (8, 10)]
    assert timeline.memory == (((0, 4), (3, 3), (6, 2), (8, 1), (10, 0)),)


@MODELS
def test_deadlock_names_the_cycle(model):
    problem = small_problem(2, 2, forward=Hop())
    with pytest.raises(Deadlock) as raised:
        model(problem, orders(problem, "F0 D0 F1", "F1 F0 D0"))
    assert raised.value.cycle == [
        "stage 0 waits before D0 of chunk 0 for the message D0 from position 1, which stage 1 has not made",
        "stage 1 waits before F1 of chunk 0 for the message F1 from position 0, which stage 0 has not made",
    ]


@MODELS
def test_deadlock_behind_a_listed_message(model):
    problem = small_problem(2, 2, forward=Hop(wire="w"), backward=Hop())
    listed = {"w": (Message("F", 0, 1), Message("F", 0, 0))}
    with pytest.raises(Deadlock) as raised:
        model(problem, orders(problem, "F0 D0 F1", "F0 D0 F1", messages=listed))
    assert raised.value.cycle == [
        "stage 0 waits before D0 of chunk 0 for the message D0 from position 1, which stage 1 has not made",
        "stage 1 waits before F0 of chunk 0 for the message F0 from position 0, which wire w holds behind the "
        "message F1 from position 0, which stage 0 has not made",
    ]


@MODELS
def test_deadlock_of_a_message_nobody_needs(model):
    replica = DataParallel(reduce=Hop(wire="w"))
    problem = small_problem(1, 1, forward=Hop(), data_parallel=((replica,),))
    with pytest.raises(Deadlock, match="the iteration waits for the reduce of position 0, which wire w does not list"):
        model(problem, orders(problem, "F0 D0 W0", messages={"w": ()}))


@MODELS
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("F0 F7", r"orders\[0\]\[1\] = 'F7 of chunk 0': there is no microbatch 7; use 0 to 1"),
        ("X0", r"orders\[0\]\[0\] = 'X0 of chunk 0': there is no block of kind 'X'"),
        ("F0 D0 B0", r"orders\[0\]\[2\] = 'B0 of chunk 0': the order has this work before"),
    ],
)
def test_blocks_that_do_not_exist(model, row, message):
    problem = small_problem(1, 2, forward=Hop())
    with pytest.raises(FieldError, match=message):
        model(problem, orders(problem, row))


@MODELS
def test_listed_messages_that_do_not_travel_there(model):
    problem = small_problem(2, 1, forward=Hop(wire="w"), backward=Hop())
    with pytest.raises(FieldError, match="no such message travels on this wire"):
        model(problem, orders(problem, "F0", "F0", messages={"w": (Message("D", 1, 0),)}))
    with pytest.raises(FieldError, match="there is no such wire; wires: w"):
        model(problem, orders(problem, "F0", "F0", messages={"v": ()}))
