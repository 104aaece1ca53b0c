"""Gathers and reductions of replicas: where a plan starts and awaits them, worked out by hand, and when they count."""

from __future__ import annotations

import time

import msgspec
import pytest
from inprocess_ranks import FORMAT, execute
from orders import schedule_of

from crosspipe.execute.engine import Settings
from crosspipe.execute.lowering import lower
from crosspipe.problem import DataParallel, Hop, Problem
from crosspipe.schedule import Block, simulate

MS = 1_000_000


def replicated() -> Problem:
    """Two stages; parameters of stage 1 are gathered in 5 ms, gradients of both stages reduced in 20 ms."""
    problem = Problem.uniform(stages=2, microbatches=2, forward_ms=10, input_grad_ms=10, weight_grad_ms=10)
    reduce, gather = Hop(latency_ns=20 * MS, wire="dp"), Hop(latency_ns=5 * MS)
    rows = ((DataParallel(reduce=reduce),), (DataParallel(reduce=reduce, gather=gather),))
    return msgspec.structs.replace(problem, data_parallel=rows)


ORDERS = [
    [Block("F", 0, 0), Block("F", 0, 1), Block("D", 0, 0), Block("W", 0, 0), Block("D", 0, 1), Block("W", 0, 1)],
    [Block("F", 0, 0), Block("F", 0, 1), Block("B", 0, 0), Block("B", 0, 1)],
]


def test_a_gather_precedes_the_first_forward_and_a_reduction_follows_the_last_weight_gradient():
    plan = lower(replicated(), schedule_of(replicated(), ORDERS), message_bytes=FORMAT.size_bytes)
    words = [[str(a) for a in rank.actions if a.kind not in ("post", "wait", "send", "release")] for rank in plan.ranks]
    assert words[0][-2:] == ["compute W1 of chunk 0", "start the reduce of position 0"]
    assert not any("gather" in word for word in words[0])
    assert words[1][:3] == [
        "start the gather of position 1",
        "wait for the gather of position 1",
        "compute F0 of chunk 0",
    ]
    assert words[1][-2:] == ["compute B1 of chunk 0", "start the reduce of position 1"]
    assert plan.wire_senders["dp"] == (0, 1)


class Told:
    """Replicas that only note what they are asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []

    def gather(self, chunk: int) -> None:
        self.calls.append(("gather", chunk))

    def reduce(self, chunk: int) -> None:
        self.calls.append(("reduce", chunk))

    def wait(self, chunk: int | None = None) -> None:
        self.calls.append(("wait", chunk))


@pytest.mark.serial
def test_the_iteration_ends_with_its_reductions_as_the_model_says():
    problem = replicated()
    schedule = schedule_of(problem, ORDERS)
    told = [Told(), Told()]
    plan = lower(problem, schedule, message_bytes=FORMAT.size_bytes)
    traces = execute(problem, plan, Settings(), replicas=told.__getitem__)[0][0]
    assert told[0].calls == [("reduce", 0), ("wait", None)]
    assert told[1].calls == [("gather", 0), ("wait", 0), ("reduce", 0), ("wait", None)]
    # stage 1: F 10-20 20-30, B 30-50 50-70; stage 0: D0 50-60 W0 -70, D1 70-80, W1 -90; its reduction arrives at 110
    assert simulate(problem, schedule).makespan_ns == 110 * MS
    assert traces[0].blocks_end_ns - traces[0].begin_ns >= 110 * MS
    reductions = [m for trace in traces for m in trace.messages if m.message.kind == "reduce"]
    assert [m.arrival_ns - m.ready_ns for m in reductions] == [20 * MS] * 2
    assert traces[0].blocks_end_ns == max(m.arrival_ns for m in reductions)
    gathered = next(m for m in traces[1].messages if m.message.kind == "gather")
    assert gathered.arrival_ns - gathered.ready_ns == 5 * MS


class Slow(Told):
    """Replicas whose reductions take 80 ms."""

    def wait(self, chunk: int | None = None) -> None:
        super().wait(chunk)
        if chunk is None:
            time.sleep(0.08)


@pytest.mark.serial
def test_a_reduction_that_is_late_ends_the_iteration_when_it_really_ended():
    problem = replicated()  # reductions of 20 ms
    plan = lower(problem, schedule_of(problem, ORDERS), message_bytes=FORMAT.size_bytes)
    traces = execute(problem, plan, Settings(), replicas=[Slow(), Slow()].__getitem__)[0][0]
    last = max(b.end_ns for trace in traces for b in trace.blocks)
    assert traces[0].blocks_end_ns - last >= 80 * MS
