"""Which rank is what when a pipeline has replicas, and what each of them puts on a shared wire."""

from __future__ import annotations

import msgspec
import pytest
import torch
from inprocess_ranks import run_ranks

from crosspipe.execute.inprocess import Hub
from crosspipe.execute.replication import Circles, OnePipeline, Pipeline, of_one_pipeline, one_share, places, senders
from crosspipe.execute.trace import Trace
from crosspipe.execute.transport import Header
from crosspipe.problem import Hop, Problem
from crosspipe.problem.problem import DataParallel


def problem_of(traversal: str = "ud") -> Problem:
    return Problem.uniform(
        traversal=traversal,
        stages=4,
        microbatches=4,
        sites=2,
        forward_ms=1,
        input_grad_ms=1,
        weight_grad_ms=1,
        latency_ms=3,
        serialisation_ms=1,
    )


@pytest.mark.parametrize(("traversal", "ranks"), [("ud", [0, 3, 4, 7]), ("wave", [0, 4]), ("loop", [0, 3, 4, 7])])
def test_a_tied_embedding_is_shared_by_the_ends_of_all_replicas(traversal, ranks):
    assert places(problem_of(traversal), 2) == ranks


def test_every_replica_sends_over_the_wires():
    assert senders({"0>1": (1,), "1>0": (2, 3)}, 4, 3) == {"0>1": (1, 5, 9), "1>0": (2, 3, 6, 7, 10, 11)}


def test_a_replica_takes_its_share_of_the_wires_and_all_of_its_own_links():
    hop = Hop(latency_ns=7, serialisation_ns=9)
    replica = DataParallel(reduce=hop, gather=msgspec.structs.replace(hop, wire="0>1"))
    problem = msgspec.structs.replace(problem_of(), data_parallel=((replica,),) * 4)
    one = one_share(problem, 2)
    crossing = problem.forward_hops[1]
    assert (crossing.latency_ns, crossing.serialisation_ns) == (3_000_000, 1_000_000)
    assert (one.forward_hops[1].latency_ns, one.forward_hops[1].serialisation_ns) == (3_000_000, 500_000)
    assert one.forward_hops[0] == problem.forward_hops[0]
    assert one.data_parallel[2][0].reduce == hop  # not shared
    assert one.data_parallel[2][0].gather.serialisation_ns == 5  # rounded up
    assert one_share(problem, 1) == problem


def test_a_view_talks_to_the_stages_of_its_own_replica():
    def body(transport):
        view, alone = Pipeline(transport, 2), OnePipeline(transport, 2)
        assert (view.rank, view.size) == (transport.rank % 2, 2)
        buffer = torch.zeros(1)
        if view.rank == 0:
            view.send(1, Header(0, 0, 0, 0, 0), torch.tensor([float(transport.rank)]))
        else:
            view.post_receive(0, buffer).wait()
        me = bytes([transport.rank])
        return buffer.item(), view.allgather(me), alone.allgather(me)

    everyone = [bytes([r]) for r in range(4)]
    assert run_ranks(Hub(4), body) == [
        (0.0, everyone, everyone[:2]),
        (0.0, everyone, everyone[:2]),
        (0.0, everyone, everyone[2:]),
        (2.0, everyone, everyone[2:]),
    ]


def test_a_circle_is_opened_once_by_all_and_joined_by_its_own():
    opened = []

    def open_group(ranks):
        opened.append(tuple(ranks))
        return f"group of {ranks}"

    circles = Circles(2, open_group)
    stages = [range(0, 4, 2), range(1, 4, 2)]
    assert circles.of(stages) == "group of (0, 2)"
    assert circles.of([[1, 3]]) is None
    assert circles.of([[2]]) is None  # alone
    assert circles.of(stages) == "group of (0, 2)"
    assert opened == [(0, 2), (1, 3)]


def test_a_record_is_the_first_replica_with_the_mean_loss():
    def trace(rank: int, loss: float | None) -> Trace:
        return Trace(
            index=0,
            begin_ns=rank,
            blocks=(),
            messages=(),
            sent=0,
            blocks_end_ns=9,
            norm_end_ns=9,
            raw_norm_end_ns=9,
            step_end_ns=9,
            raw_step_end_ns=9,
            loss=loss,
            gradient_norm=1.0,
            clip_factor=1.0,
        )

    traces = [[trace(0, None)], [trace(1, 2.0)], [trace(2, None), trace(2, None)], [trace(3, 4.0)]]
    joined = of_one_pipeline(traces, 2)
    assert [[t.begin_ns for t in row] for row in joined] == [[0], [1]]
    assert [[t.loss for t in row] for row in joined] == [[None], [3.0]]
