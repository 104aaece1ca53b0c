"""Lowering: a plan worked out by hand, and what must hold for every valid order."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import random_schedule, schedule_of

from crosspipe.errors import Deadlock, FieldError
from crosspipe.execute.deadlock import check_rendezvous
from crosspipe.execute.lowering import lower
from crosspipe.problem import Hop, Problem
from crosspipe.schedule import Block, Message, simulate

TWO = {"stages": 2, "microbatches": 2, "sites": 2, "forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1}


def test_hand_worked_plan_of_two_stages():
    # stage 0: F0 F1 B0 B1; stage 1: F0 B0 F1 B1. F 1 ms, B 2 ms, latency 1 ms.
    # stage 0: F0 0-1, F1 1-2, B0 5-7 (D0 leaves stage 1 at 5-1=... see below), stage 1: F0 2-3, B0 3-5, F1 5-6, B1 6-8.
    # D0 leaves at 5, arrives 6: B0 6-8; D1 leaves at 8, arrives 9: B1 9-11.
    problem = Problem.uniform(**TWO, latency_ms=1)
    orders = [
        [Block("F", 0, 0), Block("F", 0, 1), Block("B", 0, 0), Block("B", 0, 1)],
        [Block("F", 0, 0), Block("B", 0, 0), Block("F", 0, 1), Block("B", 0, 1)],
    ]
    schedule = schedule_of(problem, orders)
    plan = lower(problem, schedule, message_bytes=10)
    assert plan.predicted_makespan_ns == 11_000_000
    assert plan.wire_senders == {"0>1": (0,), "1>0": (1,)}
    assert [str(a) for a in plan.ranks[0].actions] == [
        "compute F0 of chunk 0",
        "send message F0 from position 0 to rank 1",
        # the last block that starts before 5 ms, when D0 is sent, is F1
        "post the receive of message D0 from position 1 from rank 1",
        "compute F1 of chunk 0",
        "send message F1 from position 0 to rank 1",
        # D1 is sent at 8 ms, the last block that starts before is B0 (6 ms)
        "post the receive of message D1 from position 1 from rank 1",
        "wait for message D0 from position 1 from rank 1",
        "compute B0 of chunk 0",
        "release buffer 0",
        "wait for message D1 from position 1 from rank 1",
        "compute B1 of chunk 0",
        "release buffer 1",
    ]
    assert [str(a) for a in plan.ranks[1].actions] == [
        # F0 is sent at 1 ms, F1 at 2 ms, nothing here starts before: both are posted first
        "post the receive of message F0 from position 0 from rank 0",
        "post the receive of message F1 from position 0 from rank 0",
        "wait for message F0 from position 0 from rank 0",
        "compute F0 of chunk 0",
        "compute B0 of chunk 0",
        "send message D0 from position 1 to rank 0",
        "release buffer 0",
        "wait for message F1 from position 0 from rank 0",
        "compute F1 of chunk 0",
        "compute B1 of chunk 0",
        "send message D1 from position 1 to rank 0",
        "release buffer 1",
    ]
    assert plan.receive_bytes == (20, 20)


def test_posting_at_use_needs_one_buffer_where_one_microbatch_is_held_at_a_time():
    problem = Problem.uniform(**TWO, latency_ms=1)
    orders = [
        [Block("F", 0, 0), Block("F", 0, 1), Block("B", 0, 0), Block("B", 0, 1)],
        [Block("F", 0, 0), Block("B", 0, 0), Block("F", 0, 1), Block("B", 0, 1)],
    ]
    plan = lower(problem, schedule_of(problem, orders), post_ahead_ns=None, message_bytes=10)
    assert plan.receive_bytes == (10, 10)
    for rank in plan.ranks:
        kinds = [a.kind for a in rank.actions]
        assert all(kinds[i + 1] == "wait" for i, kind in enumerate(kinds) if kind == "post")


def test_a_listed_order_holds_the_ready_message_back():
    problem = Problem.uniform(**TWO, latency_ms=1, serialisation_ms=1)
    orders = [[Block(kind, 0, mb) for kind in "FB" for mb in (0, 1)]] * 2
    schedule = schedule_of(problem, orders, messages={"0>1": (Message("F", 0, 1), Message("F", 0, 0))})
    plan = lower(problem, schedule)
    assert [str(a) for a in plan.ranks[0].actions if a.kind in ("compute", "send")][:4] == [
        "compute F0 of chunk 0",
        "compute F1 of chunk 0",
        "send message F1 from position 0 to rank 1",
        "send message F0 from position 0 to rank 1",
    ]
    posts = [a.message for a in plan.ranks[1].actions if a.kind == "post"]
    assert posts == [Message("F", 0, 1), Message("F", 0, 0)]


def test_an_order_across_senders_against_their_readiness_is_refused():
    # both forward boundaries of three stages on one wire: stage 0 sends F0 at 1 ms and F1 at 2 ms, stage 1 its F0 at 3
    problem = Problem.uniform(stages=3, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    hop = Hop(latency_ns=1_000_000, wire="shared")
    problem = msgspec.structs.replace(problem, forward_hops=(hop, hop))
    orders = [[Block(kind, 0, mb) for kind in "FB" for mb in (0, 1)]] * 3
    f00, f01, f10, f11 = (Message("F", position, mb) for position in (0, 1) for mb in (0, 1))
    kept = schedule_of(problem, orders, messages={"shared": (f00, f01, f10, f11)})
    assert lower(problem, kept).wire_senders == {"shared": (0, 1)}
    held = schedule_of(problem, orders, messages={"shared": (f00, f10, f01, f11)})
    with pytest.raises(FieldError, match=r"stage 1, ready at 3000000 ns.*different ranks send in the order"):
        lower(problem, held)


def test_what_cannot_be_lowered_is_refused_in_words():
    problem = Problem.uniform(**TWO)
    orders = [list(order) for order in random_schedule(problem, 1).orders]
    with pytest.raises(FieldError, match="lacks W0 of chunk 0"):
        lower(problem, schedule_of(problem, [[b for b in orders[0] if b != Block("W", 0, 0)], orders[1]]))
    crossed = [
        [Block("F", 0, 0), Block("B", 0, 0), Block("F", 0, 1), Block("B", 0, 1)],
        [Block("F", 0, 0), Block("F", 0, 1), Block("B", 0, 0), Block("B", 0, 1)],
    ]
    with pytest.raises(Deadlock):
        lower(problem, schedule_of(problem, crossed))


problems = st.builds(
    lambda shape, stages, mbs, times, latency, serialisation: Problem.uniform(
        traversal=shape,
        stages=stages,
        microbatches=mbs,
        sites=2 if stages % 2 == 0 else 1,
        forward_ms=times[0],
        input_grad_ms=times[1],
        weight_grad_ms=times[2],
        latency_ms=latency,
        serialisation_ms=serialisation,
    ),
    st.sampled_from(["ud", "wave", "loop"]),
    st.integers(2, 4),
    st.integers(1, 4),
    st.tuples(*[st.integers(0, 5)] * 3),
    st.integers(0, 9),
    st.integers(0, 4),
)


@settings(max_examples=150, deadline=None)
@given(problems, st.integers(0, 10**6), st.booleans(), st.sampled_from([0, 2_000_000, None]))
def test_every_plan_keeps_its_promises(problem, seed, fused, ahead):
    schedule = random_schedule(problem, seed, fused=fused)
    plan = lower(problem, schedule, post_ahead_ns=ahead, message_bytes=8)
    timeline = simulate(problem, schedule)
    ends = {}  # message -> end of the block that makes it
    for stage, row in enumerate(timeline.blocks):
        for block, _, end in row:
            if block.kind != "W":
                kind = "F" if block.kind == "F" else "D"
                ends[Message(kind, problem.position(stage, block.chunk), block.microbatch)] = end
    for rank in plan.ranks:
        assert tuple(a.block for a in rank.actions if a.block) == schedule.orders[rank.rank]
        owner: dict[int, Message] = {}
        most, state = 0, Counter()
        starts = iter([b.start_ns for b in timeline.blocks[rank.rank]])
        upcoming = next(starts)  # predicted start of the block that comes next
        for action in rank.actions:
            if action.kind == "post":
                assert action.slot not in owner  # nobody else lives there
                owner[action.slot] = action.message
                if ahead is not None and state["compute"]:
                    # at the start of a block, so far ahead of its message's send as asked
                    assert upcoming < ends[action.message] - ahead
                most = max(most, len(owner))
            elif action.kind == "wait":
                assert owner[action.slot] == action.message
            elif action.kind == "compute":
                upcoming = next(starts, 0)
            elif action.kind == "release":
                del owner[action.slot]
            state[action.kind] += 1
        assert not owner
        assert state["post"] == state["wait"] == state["release"]
        assert rank.slot_bytes == (8,) * most  # never more buffers than are in use at once
    for rank in plan.ranks:
        for (source, target), messages in rank.channels().items():
            assert plan.ranks[source].channels()[source, target] == messages
            assert plan.ranks[target].channels()[source, target] == messages
    check_rendezvous(plan, blocking_sends=ahead is not None)
