"""Schedule, Certificate and Timeline: the few things they compute, and what they refuse."""

from __future__ import annotations

import msgspec
import pytest

from crosspipe.errors import FieldError
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Certificate, Message, Schedule, TimedBlock, TimedMessage, Timeline


def certificate(makespan_ns: int, lower_bound_ns: int) -> Certificate:
    return Certificate(makespan_ns=makespan_ns, lower_bound_ns=lower_bound_ns, proven_by="hand", explanation="")


def test_gap_and_optimality():
    assert certificate(103, 100).gap == pytest.approx(0.03)
    assert not certificate(103, 100).optimal
    assert certificate(100, 100).gap == 0
    assert certificate(100, 100).optimal
    with pytest.raises(FieldError, match=r"lower_bound_ns = 101: lies above the schedule's own makespan 100"):
        certificate(100, 101)


def test_a_certificate_says_what_it_proves():
    assert str(certificate(103_000_000, 100_000_000)) == "103.000 ms, at most 3.00% above the optimum (hand): "
    assert str(certificate(5_000_000, 5_000_000)) == "5.000 ms, proven optimal (hand): "


def test_a_schedule_fits_one_shape():
    schedule = Schedule(traversal="ud", stages=2, chunks=1, microbatches=3, orders=((), ()))
    times = {"forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1}
    schedule.check_fits(Problem.uniform(stages=2, microbatches=3, **times))
    with pytest.raises(FieldError, match=r"schedule\.traversal = 'ud': the problem has 'wave'; use traversal 'wave'"):
        schedule.check_fits(Problem.uniform(traversal="wave", stages=2, microbatches=3, **times))
    with pytest.raises(FieldError, match="orders = '1 stages': stages says 2"):
        Schedule(traversal="ud", stages=2, chunks=1, microbatches=3, orders=((),))


def test_blocks_and_messages_in_words():
    assert str(Block("W", 1, 3, 0, 4)) == "W3 of chunk 1 piece 0/4"
    assert str(Message("D", 2, 5)) == "message D5 from position 2"
    assert str(Message("reduce", 2, 0)) == "reduce of position 2"


def test_a_schedule_survives_json():
    schedule = Schedule(
        traversal="ud",
        stages=1,
        chunks=1,
        microbatches=1,
        orders=((Block("F", 0, 0), Block("D", 0, 0), Block("W", 0, 0, 0, 2), Block("W", 0, 0, 1, 2)),),
        messages={"0>1": (Message("F", 0, 0),)},
        certificate=certificate(5, 4),
    )
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule


def test_what_a_timeline_says_of_itself():
    timeline = Timeline(
        traversal="wave",
        stages=2,
        chunks=2,
        microbatches=1,
        sites=(0, 1),
        blocks=(
            (TimedBlock(Block("F", 0, 0), 10, 14), TimedBlock(Block("F", 1, 0), 20, 26)),
            (TimedBlock(Block("F", 0, 0), 16, 17), TimedBlock(Block("F", 1, 0), 17, 18)),
        ),
        messages=(
            TimedMessage(Message("F", 0, 0), "0>1", 14, 14, 14, 16),
            TimedMessage(Message("reduce", 3, 0), None, 26, 26, 30, 35),
        ),
        memory=(((10, 4), (20, 7)), ((16, 3),)),
    )
    assert (timeline.start_ns, timeline.end_ns, timeline.makespan_ns) == (10, 35, 25)
    assert timeline.peak_memory_bytes() == (7, 3)
    assert timeline.busy_ns(0) == 10
    assert timeline.bubble_ratio(0) == pytest.approx(0.6)
    assert [timeline.crosses_sites(Message("F", k, 0)) for k in range(3)] == [True, False, True]
    assert not timeline.crosses_sites(Message("reduce", 0, 0))
    assert timeline.position(0, 1) == 3
