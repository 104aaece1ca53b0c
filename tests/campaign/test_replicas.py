"""Replicas in a Problem, worked out by hand: everybody's bytes on the wires, rings inside a site."""

from __future__ import annotations

import msgspec
import pytest

from crosspipe.campaign.config import NetworkConfig, PipelineConfig
from crosspipe.campaign.problems import build_problem
from crosspipe.errors import FieldError, UsageError
from crosspipe.problem import BlockCost, BlockCosts, Hop, Link, LinkTable

MS = 1_000_000
BLOCK = BlockCost(
    forward_ns=MS,
    input_grad_ns=MS,
    weight_grad_ns=MS,
    forward_keep_bytes=8,
    input_grad_release_bytes=4,
    weight_grad_release_bytes=4,
    forward_message_bytes=1000,
    backward_message_bytes=1000,
)
BLOCKS = BlockCosts(blocks=((BLOCK,),) * 4, parameter_bytes=(3000, 6000, 6000, 3001))
# inside site 0: 10 us and 1 ns/byte one way, 20 us and 2 ns/byte back; inside site 1: 5 us, bytes for nothing
LINES = {(0, 1): (10_000, 10**9), (1, 0): (20_000, 5 * 10**8), (2, 3): (5_000, None), (3, 2): (5_000, None)}
TABLE = LinkTable(
    links=tuple(
        Link(source=a, target=b, transport="gloo", latency_ns=latency, bandwidth_bytes_per_s=bandwidth)
        for a in range(4)
        for b in range(4)
        if a != b
        for latency, bandwidth in (LINES.get((a, b), (0, None)),)
    ),
    site_of_rank=(0, 0, 1, 1),
)
INJECTED = NetworkConfig(kind="injected", latency_ms=2.0, bandwidth_gbit_per_s=1.0)  # 8 us a message


def build(blocks: BlockCosts = BLOCKS, links: LinkTable | None = TABLE, **pipeline: object):
    config = PipelineConfig(**({"sites": 2, "stages": 4, "microbatches": 8} | pipeline))
    return build_problem(blocks, links, network=INJECTED, pipeline=config, pace=None)


def test_one_replica_reduces_nothing():
    assert build().data_parallel == ()


def test_all_replicas_share_the_wire_and_no_link_inside_a_site():
    one, three = build(), build(replicas=3)
    assert one.forward_hops[1] == Hop(latency_ns=2 * MS, serialisation_ns=8_000, wire="0>1")
    assert three.forward_hops[1] == Hop(latency_ns=2 * MS, serialisation_ns=24_000, wire="0>1")
    assert three.backward_hops[1].serialisation_ns == 24_000
    assert three.forward_hops[0] == one.forward_hops[0] == Hop(latency_ns=10_000, serialisation_ns=1_000)


def test_a_ratio_is_that_of_the_messages_of_all_replicas():
    """T_bw/T_F = 1 is T_F = 1 ms on the wire, however many replicas share it."""
    for replicas in (1, 3):
        pipeline = PipelineConfig(sites=2, stages=4, microbatches=8, replicas=replicas)
        ratios = NetworkConfig(kind="injected", delay=(2.0, 1.0))
        problem = build_problem(BLOCKS, TABLE, network=ratios, pipeline=pipeline, pace=None)
        assert problem.forward_hops[1] == Hop(latency_ns=2 * MS, serialisation_ns=MS, wire="0>1")


def test_a_reduction_is_a_ring_over_the_slowest_link_of_the_site():
    reductions = [row[0] for row in build(replicas=3).data_parallel]
    # 3000 bytes in three parts of 1000, 2 * 2 steps of 20 us + 2 us each; all of it without a wire
    assert reductions[0].reduce == Hop(latency_ns=80_000, serialisation_ns=8_000)
    assert reductions[1].reduce == Hop(latency_ns=80_000, serialisation_ns=16_000)
    assert reductions[3].reduce == Hop(latency_ns=20_000)
    assert all(reduction.gather is None for reduction in reductions)


def test_zero_1_gathers_what_it_does_not_reduce():
    (first,), *_ = build(replicas=3, zero1=True).data_parallel
    assert first.reduce == first.gather == Hop(latency_ns=40_000, serialisation_ns=4_000)


def test_without_a_link_inside_the_site_a_reduction_is_free():
    alone = build(sites=4, stages=4, replicas=2)
    assert [row[0].reduce for row in alone.data_parallel] == [Hop()] * 4
    assert [row[0].reduce for row in build(links=None, replicas=2).data_parallel] == [Hop()] * 4


def test_what_cannot_be_is_refused():
    with pytest.raises(FieldError, match=r"pipeline\.replicas = 2: the block costs do not say parameter_bytes"):
        build(msgspec.structs.replace(BLOCKS, parameter_bytes=()), replicas=2)
    with pytest.raises(UsageError, match=r"pipeline\.zero1 = True: there is one replica"):
        build(zero1=True)
    with pytest.raises(UsageError, match=r"pipeline\.replicas = 0: there is at least one"):
        build(replicas=0)
