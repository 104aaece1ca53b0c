"""From measurements and configuration to the Problem: pace, the links across sites, memory limits. One pure function.

Links across sites are either as measured or *replaced* by what the configuration injects; links inside a site are
always as measured. What the emulation cannot do, hide a real link slower than the one it stands for, is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from crosspipe.campaign.config import NetworkConfig, PipelineConfig
from crosspipe.campaign.replicas import with_replicas
from crosspipe.errors import FieldError
from crosspipe.problem import BlockCosts, Hop, Link, LinkTable, Problem
from crosspipe.problem.problem import wire_name
from crosspipe.problem.traversal import place_of

MIB = 2**20


def build_problem(
    blocks: BlockCosts, links: LinkTable | None, *, network: NetworkConfig, pipeline: PipelineConfig, pace: float | None
) -> Problem:
    """The Problem of one point.

    Profiled durations are multiplied by `pace` (None: 1); T_F is that of the paced blocks, so ratios of T_F mean the
    same whatever the pace, and a link in ms and Gbit/s is taken as it is. T_bw is the serialisation of the largest
    message across sites, of all replicas together. Rank r of the link table is stage r; without a table (a simulated
    point) messages inside a site cost nothing unless they are injected, and those across sites must be.

    Raises FieldError where blocks and pipeline do not belong together, a link was not measured, or the measured link
    across sites is slower than the injected one by more than `network.tolerance` of T_F.
    """
    if blocks.stages != pipeline.stages:
        raise FieldError(
            "pipeline.stages", pipeline.stages, f"the blocks are of {blocks.stages} stages", "profile this split"
        )
    costs = tuple(tuple(cost.scaled(pace or 1.0) for cost in row) for row in blocks.blocks)
    sites = pipeline.site_of_stage()
    stages, chunks = blocks.stages, blocks.chunks
    reference_ns = max(sum(cost.forward_ns for cost in row) for row in costs)

    boundaries = []  # (sending stage, receiving stage, bytes), forward and backward, for each boundary
    for position in range(stages * chunks - 1):
        (here, chunk), (there, other) = (place_of(blocks.traversal, stages, position + k) for k in (0, 1))
        forward, backward = costs[here][chunk].forward_message_bytes, costs[there][other].backward_message_bytes
        boundaries.append(((here, there, forward), (there, here, backward)))
    crossing = [size for pair in boundaries for a, b, size in pair if sites[a] != sites[b]]
    injected = _injected(network, reference_ns, max(crossing, default=0))

    def hop(source: int, target: int, size: int) -> Hop:
        if source == target:
            return Hop()
        if links is None:
            as_measured = Hop()
        else:
            measured = links.between(source, target)
            as_measured = measured.hop(size)
        if sites[source] == sites[target]:
            if network.inside_ratio is None:
                return as_measured
            wanted = Hop(latency_ns=round(network.inside_ratio * reference_ns))
            _check_measured(as_measured, wanted, source, target, size, reference_ns, network.tolerance)
            return wanted
        wire = wire_name(sites[source], sites[target])
        if injected is None:
            if links is None:
                raise FieldError(
                    "network.kind", "measured", "no links are measured for a simulated point", "inject: network=ratios"
                )
            return Hop(latency_ns=as_measured.latency_ns, serialisation_ns=as_measured.serialisation_ns, wire=wire)
        wanted = injected(size, sites[source], sites[target])
        _check_measured(as_measured, wanted, source, target, size, reference_ns, network.tolerance)
        return wanted

    one = Problem(
        traversal=blocks.traversal,
        stages=stages,
        chunks=chunks,
        microbatches=pipeline.microbatches,
        costs=costs,
        forward_hops=tuple(hop(*forward) for forward, _ in boundaries),
        backward_hops=tuple(hop(*backward) for _, backward in boundaries),
        activation_limit_bytes=(activation_limit_bytes(blocks, pipeline),) * stages,
        sites=sites,
        weight_grad_pieces=pipeline.weight_grad_pieces,
    )
    for_all = network.ratios() is not None
    return with_replicas(one, blocks, links, pipeline.replicas, pipeline.zero1, for_all=for_all)


def activation_limit_bytes(blocks: BlockCosts, pipeline: PipelineConfig) -> int | None:
    """The activation limit of every stage.

    `memory_microbatches` = M allows what 1F1B holds with M microbatches in flight on the fullest stage: M times what F
    keeps, and what one D takes besides.
    """
    if pipeline.memory_mib is not None:
        return round(pipeline.memory_mib * MIB)
    if pipeline.memory_microbatches is None:
        return None
    return max(
        math.floor(pipeline.memory_microbatches * sum(cost.forward_keep_bytes for cost in row))
        + max(cost.input_grad_take_bytes for cost in row)
        for row in blocks.blocks
    )


def _injected(network: NetworkConfig, reference_ns: int, largest_bytes: int) -> Callable[[int, int, int], Hop] | None:
    """The injected hop of a message of some bytes from one site to another; None where nothing is injected."""
    if network.kind == "measured":
        return None
    if network.kind == "table":
        return _from_table(network)
    ratios = network.ratios()
    if ratios is None:
        latency_ns = round((network.latency_ms or 0.0) * 1e6)
        bandwidth = network.bandwidth_gbit_per_s
        ns_per_byte = 0.0 if bandwidth is None else 8 / bandwidth
    else:
        latency_ns = round(ratios[0] * reference_ns)
        ns_per_byte = ratios[1] * reference_ns / largest_bytes if largest_bytes else 0.0

    def hop(size: int, source_site: int, target_site: int) -> Hop:
        serialisation_ns = math.ceil(round(ns_per_byte * size, 3))  # a rounding error of the product is not a ns more
        wire = wire_name(source_site, target_site)
        return Hop(latency_ns=latency_ns, serialisation_ns=serialisation_ns, wire=wire)

    return hop


def _from_table(network: NetworkConfig) -> Callable[[int, int, int], Hop]:
    links = {
        (source, target): Link(
            source=source, target=target, transport="table", latency_ns=latency_ns, bandwidth_bytes_per_s=bandwidth
        )
        for source, target, latency_ns, bandwidth in network.canonical().links or ()
    }

    def hop(size: int, source_site: int, target_site: int) -> Hop:
        if (source_site, target_site) not in links:
            wrong = f"has no row for site {source_site} to site {target_site}"
            raise FieldError("network.file", network.file or network.kind, wrong, "add it to the table")
        return links[source_site, target_site].hop(size, wire_name(source_site, target_site))

    return hop


def _check_measured(
    measured: Hop, injected: Hop, source: int, target: int, size: int, reference_ns: int, tolerance: float
) -> None:
    excess_ns = measured.delay_ns - injected.delay_ns
    if excess_ns > tolerance * reference_ns:
        raise FieldError(
            "network",
            f"{injected.delay_ns / 1e6:.3f} ms",
            f"the measured link {source}->{target} takes {measured.delay_ns / 1e6:.3f} ms for {size} bytes, "
            f"slower than the link it should stand for by {excess_ns / reference_ns:.1%} of T_F",
            f"inject a slower link, use a larger run.pace, or allow it with network.tolerance (now {tolerance:g})",
        )
