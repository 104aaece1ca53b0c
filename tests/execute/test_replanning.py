"""Plans made anew in a run: what its messages say of a wire, and a bandwidth that falls while it trains."""

from __future__ import annotations

import msgspec
import pytest
from sessions import of_our_ranks, session_of, two_stages

from crosspipe.errors import FieldError, UsageError
from crosspipe.execute.replanning import as_seen, farthest, words
from crosspipe.execute.session import run_session
from crosspipe.execute.spec import RunConfig
from crosspipe.execute.trace import Trace, TracedMessage
from crosspipe.problem import Problem
from crosspipe.schedule import Message
from crosspipe.solver import solve

MS = 1_000_000
# over 0>1 a message takes 10 ms of the wire and 5 ms more
PROBLEM = Problem.uniform(
    stages=2, microbatches=6, sites=2, forward_ms=10, input_grad_ms=10, weight_grad_ms=10, latency_ms=5,
    serialisation_ms=10,
)  # fmt: skip


def received(*lives: tuple[int, int | None], kind: str = "F") -> Trace:
    """The trace of the rank that got these messages, (ready, arrival) in ms; None: it was there when it was wanted."""
    messages = []
    for microbatch, (ready, arrival) in enumerate(lives):
        times = [ready * MS] * 3 + [(ready if arrival is None else arrival) * MS] * 5
        messages.append(TracedMessage(Message(kind, 0 if kind == "F" else 1, microbatch), *times))
    return Trace(
        index=0, begin_ns=0, blocks=(), messages=tuple(messages), sent=0, blocks_end_ns=0, norm_end_ns=0,
        raw_norm_end_ns=0, step_end_ns=0, raw_step_end_ns=0, loss=None, gradient_norm=1.0, clip_factor=1.0,
    )  # fmt: skip


def hops(problem: Problem) -> list[tuple[float, float]]:
    pairs = (problem.forward_hops[0], problem.backward_hops[0])
    return [(hop.latency_ns / MS, hop.serialisation_ns / MS) for hop in pairs]


def test_a_wire_that_became_slower_is_told_from_a_queue_on_it():
    """Alone 25 ms: 5 and 20. The second is ready at 12 but served from 30 to 50; nobody saw the third come, so when
    the fourth was served is not known; the fifth waits for the fourth, which was served at 120."""
    there = received((10, 35), (12, 55), (60, None), (100, 125), (110, 145))
    seen = as_seen(PROBLEM, [(received(), there)])
    assert hops(seen) == [(5, 20), (5, 10)]  # nothing was seen of the way back
    assert farthest(PROBLEM, seen) == pytest.approx(25 / 15 - 1)
    assert words(PROBLEM, seen) == "0>1: 25.0 ms instead of 15.0 ms, 1>0: 15.0 ms instead of 15.0 ms"
    assert msgspec.structs.replace(seen, forward_hops=PROBLEM.forward_hops) == PROBLEM


def test_as_planned_is_no_change_and_few_messages_are_none():
    back = received((40, 55), (45, 65), (100, 115), kind="D")
    assert as_seen(PROBLEM, [(back, received((10, 90), (95, 190)))]) == PROBLEM
    assert farthest(PROBLEM, PROBLEM) == 0


def test_a_message_faster_than_the_latency_has_less_of_it():
    assert hops(as_seen(PROBLEM, [(received(), received((0, 3), (10, 13), (20, 23)))])) == [(3, 0), (5, 10)]


@pytest.mark.serial
def test_a_run_whose_link_becomes_slower_goes_on_with_a_schedule_for_it(tmp_path):
    problem = two_stages(milliseconds=8)  # 8 ms of latency and 4 on the wire: at a quarter of its bandwidth, 16
    trace = tmp_path / "trace.csv"
    trace.write_text("start_s,factor\n0,1\n0.8,0.25\n")
    session = session_of(
        tmp_path, {"a": solve(problem, "cross_ud")}, problem,
        iterations=55, bandwidth_trace=str(trace), replan_above=0.5, check_gradients=False, timeout_s=20.0,
    )  # fmt: skip
    (outcome,) = run_session(session)
    assert outcome.failure is None
    (swap,) = outcome.record.swaps
    assert (swap.schedule_name, swap.refused) == ("cross_ud", None)
    slower = Problem.uniform(
        stages=2, microbatches=4, sites=2, forward_ms=8, input_grad_ms=8, weight_grad_ms=8, latency_ms=8,
        serialisation_ms=16,
    )  # fmt: skip
    expected = solve(slower, "cross_ud").certificate
    assert expected.optimal
    assert swap.predicted_makespan_ns == pytest.approx(expected.makespan_ns, rel=0.02)
    assert 5 < swap.iteration < 56
    assert of_our_ranks(tmp_path) == []


def test_what_cannot_be_planned_anew_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"run.replan_above = 0.2: run.swap_file is given too; give one of them"):
        RunConfig(pace=1.0, replan_above=0.2, swap_file="next.json")
    with pytest.raises(UsageError, match=r"run.replan_above = 0: is not a finite number > 0; use more than 0, or null"):
        RunConfig(pace=1.0, replan_above=0)
    problem = two_stages()
    session = session_of(tmp_path, {"a": solve(problem, "1f1b")}, problem, replan_above=0.2)
    with pytest.raises(FieldError, match=r"run.replan_above = 0.2: .*; use null with replicas"):
        msgspec.structs.replace(session, replicas=2)
