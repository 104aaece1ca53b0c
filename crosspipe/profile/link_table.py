"""From the samples of all pairs to the LinkTable: fits, findings, and the record of how they were measured."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from crosspipe.problem import Finding, Link, LinkTable
from crosspipe.problem.spread import FEWEST, spread
from crosspipe.profile import distrust
from crosspipe.profile.fit import fit_link
from crosspipe.profile.pingpong import PING_PONG, Rule, Skipped
from crosspipe.profile.places import Place, cores, medium, transport_environment
from crosspipe.profile.rounds import Round
from crosspipe.profile.samples import Windows
from crosspipe.profile.streams import contention, crossings, with_streams

Samples = Mapping[tuple[str, int, int, int], NDArray[np.float64]]  # (transport, source, target, bytes): one-way ns


def run_transport(transports: Sequence[str]) -> str:
    """Of those measured, the one that a run uses, and its Problem too."""
    return next((name for name in ("nccl", "gloo") if name in transports), transports[0])


def with_torch(transports: Sequence[str]) -> bool:
    """Whether torch carries one of them, or holds its messages."""
    return bool({"gloo", "nccl", "mpi_device"} & set(transports))


def build_table(
    samples: Samples,
    windows: Windows | None = None,
    *,
    places: Sequence[Place],
    transports: Sequence[str],
    sizes_bytes: Sequence[int],
    environ: Mapping[str, str],
    skipped: Sequence[Skipped] = (),
    findings: Iterable[Finding] = (),
    environment: Mapping[str, str],
) -> LinkTable:
    """One Link per transport and ordered pair that left usable samples, with everything that is wrong with them.

    `samples` are ping-pongs, `windows` what windows of messages in flight took (`crosspipe.profile.streams`).
    `places[r]` is rank r's; `skipped` is what there was no time for; `findings` are those made while measuring, and
    come first. Samples that are no times (NaN, zero, negative) are reported and left out of the fit; a pair without any
    has no link.
    """
    ranks = range(len(places))
    pairs = [(source, target) for source in ranks for target in ranks if source != target]
    links = []
    for transport in transports:
        for source, target in pairs:
            by_size = {}
            for size in sizes_bytes:
                times = distrust.usable(samples.get((transport, source, target, size), np.empty(0)))
                if len(times):
                    by_size[size] = times
            if by_size:
                links.append(fit_link(source, target, transport, by_size))
    site_of_rank = tuple(place.site for place in places)
    usable_windows = {key: left for key, took in (windows or {}).items() if len(left := distrust.usable(took))}
    streaming = with_streams(links, usable_windows)
    keys = [(t, source, target, size) for t in transports for source, target in pairs for size in sizes_bytes]
    left_out = {one[1:] for one in skipped if one.pattern == PING_PONG}
    named = {
        (f"{transport} ({pattern} windows of {window})", source, target, size): took
        for (pattern, transport, source, target, size, window), took in (windows or {}).items()
    }
    found = [
        *findings,
        *distrust.sizes_skipped(skipped),
        *distrust.placement(places, transports, environ),
        *distrust.bad_samples({**samples, **named}, [*(key for key in keys if key not in left_out), *named]),
        *distrust.bimodal(samples),
        *link_findings(links, site_of_rank, [place.node for place in places]),
    ]
    busy = {pairs: _enough_cores(pairs, places) for pairs in crossings(site_of_rank)}
    return LinkTable(
        links=streaming,
        site_of_rank=site_of_rank,
        node_of_rank=tuple(place.node for place in places),
        run_transport=run_transport(transports),
        contention=contention(streaming, usable_windows, site_of_rank, busy),
        findings=tuple(found),
        environment=dict(environment),
    )


def _enough_cores(pairs: Round, places: Sequence[Place]) -> bool:
    busy = Counter(places[rank].machine for pair in pairs for rank in pair)
    return all(count <= cores(places)[machine] for machine, count in busy.items())


def link_findings(
    links: Sequence[Link], site_of_rank: Sequence[int], node_of_rank: Sequence[str] = ()
) -> list[Finding]:
    """What the links themselves show: protocol switches, slips of units, slow ranks (and the nodes they are on)."""
    return [
        *distrust.protocol_switches(links),
        *distrust.unit_slips(links, site_of_rank),
        *distrust.slow_ranks(links, site_of_rank, node_of_rank),
    ]


def describe(
    samples: Samples,
    *,
    places: Sequence[Place],
    transports: Sequence[str],
    rule: Rule,
    environ: Mapping[str, str],
    library: str,
) -> dict[str, str]:
    """How and where it was measured: hosts, cores, media, libraries, the variables that steer transports, the rule."""
    settled = [spread(times).relative_width <= rule.width for times in samples.values() if len(times) >= FEWEST]
    described = {
        "hosts": ", ".join(f"{count} ranks on {host}" for host, count in Counter(p.host for p in places).items()),
        "cores_per_rank": ", ".join(str(len(place.cores)) for place in places),
        "mpi": library,
        "mpi4py": version("mpi4py"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "method": "ping-pong, half of the round trip, monotonic clock, receives posted first, host memory"
        f"{' (nccl: device memory, receives in order)' if 'nccl' in transports else ''}"
        f"{' (mpi_device: device memory)' if 'mpi_device' in transports else ''}",
        "rule": f"until the 95 % interval of the median is {rule.width:.0%} of it or less, or time is up; at least "
        f"{rule.fewest} round trips, or 6 where there is no time for more, {rule.warmup} warm-ups before each batch",
        "sizes_settled": f"{sum(settled)} of {len(samples)}",
    }
    if with_torch(transports):
        described["torch"] = version("torch")
    for transport in transports:
        media = Counter(medium(transport, a, b, environ) for a, b in combinations(places, 2))
        described[f"medium_{transport}"] = ", ".join(f"{name}: {count} pairs" for name, count in media.items())
    if "SLURM_JOB_ID" in environ:
        described["slurm_job"] = environ["SLURM_JOB_ID"]
    return described | transport_environment(environ)
