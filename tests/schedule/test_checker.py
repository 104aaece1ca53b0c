"""Every fault gets its own sentence, and nothing but faults does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import RUNNABLE_CASES

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.schedule import Block, Certificate, Message, Schedule, check, simulate

MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
replace = msgspec.structs.replace


def two_stages(**changes) -> Problem:
    """Two stages, two microbatches; F = 1, D = 2, W = 3 ns; F keeps 4 bytes, D returns 1, W 3; wires 0>1 and 1>0."""
    cost = BlockCost(
        forward_ns=1,
        input_grad_ns=2,
        weight_grad_ns=3,
        forward_keep_bytes=4,
        input_grad_release_bytes=1,
        weight_grad_release_bytes=3,
    )
    arguments = {
        "traversal": "ud",
        "stages": 2,
        "microbatches": 2,
        "costs": ((cost,), (cost,)),
        "forward_hops": (Hop(wire="0>1"),),
        "backward_hops": (Hop(wire="1>0"),),
        "activation_limit_bytes": (8, 8),
        "sites": (0, 1),
        **changes,
    }
    return Problem(**arguments)


def schedule(*rows: str, **changes) -> Schedule:
    """`W0.1/3` is piece 1 of 3."""

    def block(word: str) -> Block:
        name, _, part = word.partition(".")
        piece, pieces = map(int, part.split("/")) if part else (0, 1)
        return Block(name[0], 0, int(name[1:]), piece, pieces)

    orders = tuple(tuple(block(word) for word in row.split()) for row in rows)
    arguments = {"traversal": "ud", "stages": 2, "chunks": 1, "microbatches": 2, "orders": orders, **changes}
    return Schedule(**arguments)


GOOD = "F0 F1 D0 W0 D1 W1"


def sentences(problem: Problem, candidate: Schedule) -> list[tuple[str, str]]:
    return [(v.kind, v.message) for v in check(problem, candidate)]


def test_a_valid_schedule_has_no_violation():
    assert check(two_stages(), schedule(GOOD, GOOD)) == []
    assert check(two_stages(), schedule("F0 F1 B0 B1", "F0 B0 F1 B1")) == []
    assert check(two_stages(weight_grad_pieces=3), schedule("F0 F1 D0 W0 D1 W1.0/3 W1.2/3 W1.1/3", GOOD)) == []


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("F0 F1 D0 D1 W1", [("missing", "stage 0 lacks W0 of chunk 0")]),
        (
            "F0 D0 W0",
            [("missing", f"stage 0 lacks {k}1 of chunk 0") for k in "FDW"]
            + [
                (
                    "deadlock",
                    "stage 0 waits before D0 of chunk 0 for the message D0 from position 1, which stage 1 "
                    "has not made; stage 1 waits before F1 of chunk 0 for the message F1 from position 0, whose block "
                    "is not in the order of stage 0",
                )
            ],
        ),
        (
            "F0 F1 D0 W0 D1 W1 W1",
            [("block", "orders[0][6] = W1 of chunk 0: the order has this work before; list each block once")],
        ),
        (
            "F0 F1 D0 W0 B1 D1",
            [("block", "orders[0][5] = D1 of chunk 0: the order has this work before; list each block once")],
        ),
        ("F0 F1 B0 W0 B1", [("pieces", "stage 0 runs W0 of chunk 0 though its B0 has done that work")]),
        (
            "F0 F1 D0 W0.0/2 W0.1/2 D1 W1",
            [("pieces", "stage 0 cuts W0 of chunk 0 in 2 pieces; the problem allows 1")],
        ),
        (
            "F0 F1 D0 D1 W0 W2",
            [("block", "orders[0][5] = W2 of chunk 0: there is no microbatch 2; use 0 to 1")],
        ),
        (
            "F0 F1 W0 D0 D1 W1",
            [
                ("order", "stage 0 runs W0 of chunk 0 before its D0"),
                (
                    "deadlock",
                    "stage 0 waits before W0 of chunk 0 for its own D0 of chunk 0, which comes later in its order",
                ),
            ],
        ),
    ],
)
def test_faults_of_one_stage(first, expected):
    assert sentences(two_stages(), schedule(first, GOOD)) == expected


def test_pieces_must_be_complete_and_alike():
    problem = two_stages(weight_grad_pieces=3)
    assert sentences(problem, schedule("F0 F1 D0 W0.0/3 W0.2/3 D1 W1.0/3 W1.1/2", GOOD)) == [
        ("missing", "stage 0 lacks W0 of chunk 0 piece 1/3"),
        ("pieces", "stage 0 cuts W1 of chunk 0 in [2, 3] pieces at once"),
    ]


def test_memory_is_judged_at_every_start():
    problem = two_stages(activation_limit_bytes=(7, 8))
    assert sentences(problem, schedule(GOOD, GOOD)) == [
        ("memory", "stage 0 holds 8 bytes of activations when F1 of chunk 0 starts, its limit is 7; its peak is 8")
    ]
    # D returns 1 byte at its end, before F1 takes its 4: 3 + 4 = 7
    assert check(problem, schedule("F0 D0 F1 W0 D1 W1", "F0 D0 W0 F1 D1 W1")) == []


def test_recomputed_activations_count_from_the_start_of_d():
    cost = two_stages().costs[0][0].recomputed(1)  # keep 1, D takes 3 and releases 1
    problem = two_stages(costs=((cost,), (cost,)), activation_limit_bytes=(4, 4))
    assert sentences(problem, schedule(GOOD, "F0 D0 W0 F1 D1 W1")) == [
        ("memory", "stage 0 holds 5 bytes of activations when D0 of chunk 0 starts, its limit is 4; its peak is 5")
    ]


def test_memory_is_judged_even_in_a_deadlock():
    kinds = {v.kind for v in check(two_stages(activation_limit_bytes=(3, 8)), schedule("D0 F0 F1 W0 D1 W1", GOOD))}
    assert kinds == {"order", "memory", "deadlock"}


def test_a_listed_order_must_be_complete_and_known():
    listed = {"0>1": (Message("F", 0, 1), Message("F", 0, 1), Message("D", 1, 0))}
    assert sentences(two_stages(), schedule(GOOD, GOOD, messages=listed)) == [
        (
            "message_order",
            "messages['0>1'][1] = message F1 from position 0: the wire's order has it before; list each message once",
        ),
        (
            "message_order",
            "messages['0>1'][2] = message D0 from position 1: no such message travels on this wire; list only this "
            "wire's messages",
        ),
    ]
    listed = {"0>1": (Message("F", 0, 0),)}
    assert sentences(two_stages(), schedule(GOOD, GOOD, messages=listed))[0] == (
        "message_order",
        "messages['0>1'] does not list the message F1 from position 0",
    )


def test_ranks_cannot_send_out_of_ready_order():
    hop = Hop(serialisation_ns=1, wire="w")
    problem = two_stages(forward_hops=(hop,), backward_hops=(hop,))
    natural = [Message("F", 0, 0), Message("F", 0, 1), Message("D", 1, 0), Message("D", 1, 1)]
    good = schedule(GOOD, "F0 D0 W0 F1 D1 W1", messages={"w": tuple(natural)})
    # F0 ready 1, F1 ready 2; stage 1: F0 2-3, D0 3-5, W0 5-8, F1 8-9, D1 9-11
    assert check(problem, good) == []
    swapped = (natural[0], natural[2], natural[1], natural[3])
    assert sentences(problem, replace(good, messages={"w": swapped})) == [
        (
            "message_order",
            "wire w cannot send the message D0 from position 1 (stage 1, ready at 5 ns) before the message F1 from "
            "position 0 (stage 0, ready at 2 ns): different ranks send in the order they become ready",
        )
    ]
    # one rank may hold its own message back
    own = replace(good, messages={"w": (natural[1], natural[0], *natural[2:])})
    assert check(problem, own) == []


def test_another_shape_is_the_only_thing_said():
    assert sentences(two_stages(), schedule(GOOD, GOOD, microbatches=3)) == [
        ("shape", "schedule.microbatches = 3: the problem has 2; use microbatches 2")
    ]


def test_a_certificate_of_this_problem_must_be_true():
    problem = two_stages()
    certificate = Certificate(makespan_ns=99, lower_bound_ns=1, proven_by="nobody", explanation="")
    claimed = schedule(GOOD, GOOD, certificate=certificate, problem_digest=problem.digest())
    # stage 1: F0 1-2, F1 2-3, D0 3-5, W0 5-8, D1 8-10, W1 10-13; stage 0: D0 5-7, W0 7-10, D1 10-12, W1 12-15
    assert sentences(problem, claimed) == [("certificate", "the certificate states a makespan of 99 ns, it is 15 ns")]
    assert check(problem, replace(claimed, problem_digest="of another problem")) == []


@MANY
@given(data=st.data())
def test_runnable_orders_pass_and_lose_that_with_any_block(data):
    problem, good = data.draw(RUNNABLE_CASES)
    assert check(problem, good) == []
    stage = data.draw(st.sampled_from(range(problem.stages)))
    place = data.draw(st.sampled_from(range(len(good.orders[stage]))))
    block = good.orders[stage][place]
    shorter = (*good.orders[stage][:place], *good.orders[stage][place + 1 :])
    dropped = replace(good, orders=(*good.orders[:stage], shorter, *good.orders[stage + 1 :]))
    lacking = [v.message for v in check(problem, dropped) if v.kind == "missing"]
    if block.kind == "B":
        assert lacking == [f"stage {stage} lacks {k}{block.microbatch} of chunk {block.chunk}" for k in "DW"]
    else:
        assert lacking == [f"stage {stage} lacks {block}"]


@MANY
@given(data=st.data())
def test_memory_violation_exactly_below_the_simulated_peak(data):
    problem, good = data.draw(RUNNABLE_CASES)
    peaks = simulate(problem, good).peak_memory_bytes()
    assert check(replace(problem, activation_limit_bytes=peaks), good) == []
    tight = replace(problem, activation_limit_bytes=tuple(max(0, peak - 1) for peak in peaks))
    assert [v.kind for v in check(tight, good)] == ["memory"] * sum(peak > 0 for peak in peaks)


ANY = st.integers(-3, 5) | st.integers() | st.floats() | st.none()
GARBAGE_BLOCK = st.builds(Block, st.sampled_from(["F", "D", "W", "B", "", "FD", "x"]), ANY, ANY, ANY, ANY)
GARBAGE_MESSAGE = st.builds(Message, st.sampled_from(["F", "D", "W", "reduce", "gather", ""]), ANY, ANY)


@MANY
@given(
    rows=st.tuples(st.lists(GARBAGE_BLOCK, max_size=5), st.lists(GARBAGE_BLOCK, max_size=5)),
    messages=st.dictionaries(
        st.sampled_from(["0>1", "1>0", "?"]), st.lists(GARBAGE_MESSAGE, max_size=4).map(tuple), max_size=3
    ),
    replicas=st.booleans(),
)
def test_garbage_never_raises(rows, messages, replicas):
    dp = ((DataParallel(reduce=Hop(wire="0>1")),),) * 2 if replicas else ()
    junk = schedule("", "", messages=messages)
    junk = replace(junk, orders=tuple(tuple(row) for row in rows))
    assert check(two_stages(data_parallel=dp), junk) != []
