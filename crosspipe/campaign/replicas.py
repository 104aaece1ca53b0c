"""What replicas of the pipeline add to a Problem: gradient reductions, and everybody's bytes on the links across sites.

Replicas of a stage are at its site. A reduction is a ring over the slowest measured link between two ranks of that
site, which the link stage measures for one replica; where a site has one rank only, nothing is known and it is free.
"""

from __future__ import annotations

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem import BlockCosts, Hop, Link, LinkTable, Problem
from crosspipe.problem.problem import DataParallel


def with_replicas(
    problem: Problem, blocks: BlockCosts, links: LinkTable | None, replicas: int, zero1: bool, *, for_all: bool = False
) -> Problem:
    """`problem` (of one pipeline) for `replicas` pipelines side by side.

    Messages across sites take `replicas` times their serialisation, since all share the wire; unless it is `for_all`
    already, as a ratio T_bw/T_F is: that of the messages of all replicas. A ring all-reduce of b
    bytes is 2 (replicas - 1) steps of b/replicas; with `zero1` half of them reduce, the other half gather parameters.
    Raises FieldError where the profile does not say how many bytes of parameters a stage has.
    """
    if replicas == 1:
        return problem
    if len(blocks.parameter_bytes) != problem.stages:
        raise FieldError(
            "pipeline.replicas", replicas, "the block costs do not say parameter_bytes", "profile, or use replicas=1"
        )

    def shared(hop: Hop) -> Hop:
        return (
            hop
            if hop.wire is None or for_all
            else msgspec.structs.replace(hop, serialisation_ns=replicas * hop.serialisation_ns)
        )

    def ring(stage: int, rounds: int) -> Hop:
        part = -(-blocks.parameter_bytes[stage] // (problem.chunks * replicas))
        link = _inside(links, problem.sites, problem.sites[stage], part)
        steps = rounds * (replicas - 1)
        if link is None:
            return Hop()
        step = link.hop(part)
        return Hop(latency_ns=steps * step.latency_ns, serialisation_ns=steps * step.serialisation_ns)

    rows = tuple(
        (DataParallel(reduce=ring(stage, 1 if zero1 else 2), gather=ring(stage, 1) if zero1 else None),)
        * problem.chunks
        for stage in range(problem.stages)
    )
    return msgspec.structs.replace(
        problem,
        forward_hops=tuple(map(shared, problem.forward_hops)),
        backward_hops=tuple(map(shared, problem.backward_hops)),
        data_parallel=rows,
    )


def _inside(links: LinkTable | None, sites: tuple[int, ...], site: int, size: int) -> Link | None:
    """The slowest link, for messages of `size` bytes, between two ranks of a site; None where there is none."""
    ranks = [rank for rank, other in enumerate(sites) if other == site]
    if links is None or len(ranks) < 2:
        return None
    return max((links.between(a, b) for a in ranks for b in ranks if a != b), key=lambda link: link.delay_ns(size))
