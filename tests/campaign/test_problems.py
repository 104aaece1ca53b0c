"""The Problem of a point, worked out by hand: pace, ratios, absolute links, measured links, memory, refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from crosspipe.campaign.config import NetworkConfig, PipelineConfig, distrusted_table
from crosspipe.campaign.problems import activation_limit_bytes, build_problem
from crosspipe.errors import FieldError, UsageError
from crosspipe.problem import BlockCost, BlockCosts, Hop, Link, LinkTable

MS = 1_000_000


def block(forward_ms: int, keep: int, message: int, take: int = 0) -> BlockCost:
    return BlockCost(
        forward_ns=forward_ms * MS,
        input_grad_ns=2 * forward_ms * MS,
        weight_grad_ns=forward_ms * MS,
        forward_keep_bytes=keep,
        input_grad_take_bytes=take,
        input_grad_release_bytes=keep,
        weight_grad_release_bytes=take,
        forward_message_bytes=message,
        backward_message_bytes=message,
    )


BLOCKS = BlockCosts(
    blocks=((block(3, 100, 1000),), (block(5, 200, 1000, 30),), (block(4, 100, 1000),), (block(2, 50, 0),))
)
# inside a site 10 us + 1 ns/byte, across 50 us + 10 ns/byte
TABLE = LinkTable(
    links=tuple(
        Link(
            source=a, target=b, transport="gloo",
            latency_ns=10_000 if a // 2 == b // 2 else 50_000,
            bandwidth_bytes_per_s=10**9 if a // 2 == b // 2 else 10**8,
        )
        for a in range(4) for b in range(4) if a != b
    ),
    site_of_rank=(0, 0, 1, 1),
)  # fmt: skip
PIPELINE = PipelineConfig(sites=2, stages=4, microbatches=8, memory_microbatches=4)


def build(**network: object):
    pace = network.pop("pace", 2.0)
    return build_problem(
        BLOCKS, TABLE, network=NetworkConfig(**({"kind": "injected"} | network)), pipeline=PIPELINE, pace=pace
    )


def test_pace_multiplies_durations_and_ratios_are_of_the_paced_reference() -> None:
    problem = build(delay=(1.0, 0.25))
    assert problem.forward_reference_ns() == 10 * MS  # 5 ms, paced twice
    assert [row[0].weight_grad_ns for row in problem.costs] == [6 * MS, 10 * MS, 8 * MS, 4 * MS]
    assert problem.forward_hops[1] == Hop(latency_ns=10 * MS, serialisation_ns=2_500_000, wire="0>1")
    assert problem.backward_hops[1] == Hop(latency_ns=10 * MS, serialisation_ns=2_500_000, wire="1>0")
    unpaced = build(delay=(1.0, 0.25), pace=None)
    assert unpaced.forward_hops[1].latency_ns == 5 * MS


def test_hops_inside_a_site_are_injected_where_asked_for() -> None:
    problem = build(delay=(1.0, 0.25), inside_ratio=0.07)
    inside = Hop(latency_ns=700_000)  # of 10 ms, whatever the bytes; no wire: nobody queues
    assert problem.forward_hops == (inside, Hop(latency_ns=10 * MS, serialisation_ns=2_500_000, wire="0>1"), inside)
    assert problem.backward_hops[0] == inside
    with pytest.raises(FieldError, match=r"the measured link 0->1 takes 0\.011 ms .* slower than the link it should"):
        build(delay=(1.0, 0.25), inside_ratio=0.0, tolerance=0.001)
    simulated = build_problem(
        BLOCKS,
        None,
        network=NetworkConfig(kind="injected", delay=(0, 0), inside_ratio=0.1),
        pipeline=PIPELINE,
        pace=None,
    )
    assert simulated.forward_hops[0] == Hop(latency_ns=500_000)  # of 5 ms


def test_a_table_from_a_file_is_injected_for_its_pair_of_sites(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text("from,to,latency_ms,bandwidth_mbit_per_s\na,b,7,8\nb,a,9,4\n")  # 1 and 2 us a byte
    problem = build(kind="table", file=str(file))
    assert problem.forward_hops[1] == Hop(latency_ns=7 * MS, serialisation_ns=MS, wire="0>1")
    assert problem.backward_hops[1] == Hop(latency_ns=9 * MS, serialisation_ns=2 * MS, wire="1>0")
    assert problem.forward_hops[0] == Hop(latency_ns=10_000, serialisation_ns=1000)  # inside: as measured
    canonical = NetworkConfig(kind="table", name="csv", file=str(file)).canonical()
    assert canonical.links == ((0, 1, 7 * MS, 10**6), (1, 0, 9 * MS, 500_000))
    assert canonical == canonical.canonical() == NetworkConfig(kind="table", links=canonical.links)


def test_reasons_to_distrust_a_table_are_told_and_strict_refuses_them(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text("from,to,latency_ms,bandwidth_gbit_per_s\n0,1,7,8\n")
    point = SimpleNamespace(network=NetworkConfig(kind="table", file=str(file)), strict=False)
    assert [finding.name for finding in distrusted_table(point)] == ["symmetry_assumed"]  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"links\.csv': symmetry_assumed: no row for 1->0"):
        distrusted_table(SimpleNamespace(**{**vars(point), "strict": True}))  # type: ignore[arg-type]
    assert distrusted_table(SimpleNamespace(network=NetworkConfig(kind="measured"), strict=True)) == ()  # type: ignore[arg-type]


def test_a_table_without_the_pair_says_so(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="has no row for site 0 to site 1; add it"):
        build(kind="table", links=((0, 2, MS, None),))
    with pytest.raises(UsageError, match=r"network\.file = None: there is no table; give network\.file=links\.csv"):
        NetworkConfig(kind="table")
    with pytest.raises(UsageError, match=r"network\.file = 'x\.csv': no table is read with network\.kind=measured"):
        NetworkConfig(kind="measured", file="x.csv")


def test_a_measured_message_costs_what_its_size_took_not_what_the_line_says() -> None:
    off_the_line = tuple(
        msgspec.structs.replace(link, sizes_bytes=(1, 1000), medians_ns=(link.latency_ns, 3 * MS))
        for link in TABLE.links
    )
    problem = build_problem(
        BLOCKS,
        msgspec.structs.replace(TABLE, links=off_the_line),
        network=NetworkConfig(kind="measured"),
        pipeline=PIPELINE,
        pace=1.0,
    )
    assert problem.forward_hops[1] == Hop(latency_ns=50_000, serialisation_ns=3 * MS - 50_000, wire="0>1")
    assert problem.backward_hops[2] == Hop(latency_ns=10_000, serialisation_ns=0)  # no bytes, no wire


def test_inside_a_site_the_measured_link_counts_and_shares_no_wire() -> None:
    problem = build(delay=(1.0, 0.25))
    assert problem.forward_hops[0] == Hop(latency_ns=10_000, serialisation_ns=1000)
    assert problem.backward_hops[2] == Hop(latency_ns=10_000, serialisation_ns=0)  # stage 3 sends 0 bytes back
    assert problem.wires == ("0>1", "1>0")


def test_single_ratios_win_over_the_pair() -> None:
    assert build(delay=(1.0, 0.25), latency_ratio=2.0).forward_hops[1].latency_ns == 20 * MS
    hop = build(bandwidth_ratio=0.5).forward_hops[1]
    assert (hop.latency_ns, hop.serialisation_ns) == (0, 5 * MS)


def test_milliseconds_and_gigabits_are_taken_as_they_are() -> None:
    """1 Gbit/s is 8 ns a byte: 1000 bytes take 8 us; the pace does not touch the link."""
    hop = build(latency_ms=3.0, bandwidth_gbit_per_s=1.0).forward_hops[1]
    assert hop == Hop(latency_ns=3 * MS, serialisation_ns=8000, wire="0>1")
    assert build(latency_ms=3.0).forward_hops[1].serialisation_ns == 0


def test_a_measured_network_injects_nothing() -> None:
    hop = build(kind="measured").forward_hops[1]
    assert hop == Hop(latency_ns=50_000, serialisation_ns=10_000, wire="0>1")


def test_a_measured_link_slower_than_the_injected_one_is_refused() -> None:
    """Measured 60 us against 0: T_F is 10 ms, so 0.6 % of it."""
    assert build(delay=(0.0, 0.0), tolerance=0.007).forward_hops[1].delay_ns == 0
    with pytest.raises(FieldError, match=r"measured link 1->2 takes 0\.060 ms for 1000 bytes.*0\.6% of T_F.*inject"):
        build(delay=(0.0, 0.0), tolerance=0.005)
    assert build(kind="measured", tolerance=0.0).forward_hops[1].latency_ns == 50_000


def test_the_memory_limit_is_the_peak_of_1f1b_on_the_fullest_stage() -> None:
    assert activation_limit_bytes(BLOCKS, PIPELINE) == 4 * 200 + 30
    assert build(delay=(0, 0)).activation_limit_bytes == (830,) * 4
    in_mib = msgspec.structs.replace(PIPELINE, memory_microbatches=None, memory_mib=1.5)
    assert activation_limit_bytes(BLOCKS, in_mib) == 3 * 2**19
    assert activation_limit_bytes(BLOCKS, msgspec.structs.replace(PIPELINE, memory_microbatches=None)) is None


def test_blocks_of_another_split_are_refused() -> None:
    pipeline = msgspec.structs.replace(PIPELINE, stages=2)
    network = NetworkConfig(kind="measured")
    with pytest.raises(FieldError, match=r"pipeline\.stages = 2: the blocks are of 4 stages"):
        build_problem(BLOCKS, TABLE, network=network, pipeline=pipeline, pace=None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "network.delay = None: there is nothing to inject"),
        ({"delay": (1.0, float("nan"))}, "holds something that is no finite number"),
        ({"latency_ratio": -1.0}, "network.latency_ratio = -1.0: is not a finite number >= 0"),
        ({"delay": (1, 1), "latency_ms": 3.0}, "network.latency_ms = 3.0: network.delay is given too"),
        ({"bandwidth_gbit_per_s": 1.0}, "network.latency_ms = None: a bandwidth alone is no link"),
        ({"latency_ms": 1.0, "bandwidth_gbit_per_s": 0.0}, "is not a bandwidth"),
        ({"delay": (0, 0), "inside_ratio": -0.1}, "network.inside_ratio = -0.1: is not a finite number >= 0"),
        ({"kind": "measured", "inside_ratio": 0.1}, "network.inside_ratio = 0.1: nothing is injected"),
        ({"kind": "measured", "delay": (0, 0)}, "nothing is injected with network.kind=measured"),
    ],
)
def test_a_network_that_makes_no_sense_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        NetworkConfig(**({"kind": "injected"} | given))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sites": 3}, "pipeline.sites = 3: 4 stages cannot be split evenly among 3 sites; use one of 1, 2, 4 sites"),
        ({"microbatches": 0}, "pipeline.microbatches = 0"),
        ({"memory_microbatches": 0.5}, "must hold at least one microbatch"),
        ({"memory_microbatches": 2, "memory_mib": 10}, "the limit is already 2 microbatches"),
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        PipelineConfig(**({"sites": 2, "stages": 4, "microbatches": 8} | given))
    assert words in str(caught.value)
