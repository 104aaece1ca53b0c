"""Reasons to distrust a link measurement, each a named `Finding` with the numbers in a sentence.

Pure functions from what was measured to what looks wrong; nothing is corrected here. Only a world of the wrong size is
an error (`crosspipe.profile.places.check_world`): all else is kept, and said.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosspipe.problem import Finding, Link
from crosspipe.profile.fit import fit_line, pieces, residuals
from crosspipe.profile.pingpong import PING_PONG, Skipped
from crosspipe.profile.places import Place, medium

Key = tuple[str, int, int, int]  # transport, source, target, size in bytes
Samples = Mapping[Key, NDArray[np.float64]]

SHOWN = 3  # examples in a sentence
SLOW_RANK = 2.0
UNIT_SLIP = (800, 1280)  # a link off by 1000 or 1024, give or take the noise of a quarter
FAR = 10.0
FEWEST_FOR_MODES, MANY_FOR_MODES = 10, 20  # a link with little time has ten round trips a size
CLOCK_STEP_NS = 10_000_000
CLOCK_DRIFT = 1e-3  # twice what a disciplined clock may slew


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Both clocks of a rank read at one moment, in ns."""

    wall_ns: int
    monotonic_ns: int


def read_clocks() -> Clocks:
    """Both clocks now; of five tries, the one that was least interrupted."""
    best = (1 << 62, 0, 0)
    for _ in range(5):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        best = min(best, (after - before, wall, before))
    return Clocks(wall_ns=best[1], monotonic_ns=best[2])


def clock_steps(before: Sequence[Clocks], after: Sequence[Clocks]) -> list[Finding]:
    """`clock_step`: a rank (its index) whose wall clock moved against its monotonic clock during the measurement."""
    said = []
    for rank, (start, end) in enumerate(zip(before, after, strict=True)):
        lasted = end.monotonic_ns - start.monotonic_ns
        moved = end.wall_ns - start.wall_ns - lasted
        if lasted < 0 or abs(moved) > max(CLOCK_STEP_NS, CLOCK_DRIFT * lasted):
            said.append(f"rank {rank}'s wall clock moved by {moved / 1e9:+.3f} s in {lasted / 1e9:.1f} s")
    return _finding("clock_step", said)


def placement(places: Sequence[Place], transports: Iterable[str], environ: Mapping[str, str]) -> list[Finding]:
    """`nodes_are_one`: different node names, one machine. `shared_memory`, `loopback`: no network was measured.

    The latter two where ranks of different sites meet inside a machine; with a single site, where all ranks do.
    """
    pairs = list(combinations(places, 2))
    one = [
        f"nodes {a.node} (rank {a.rank}) and {b.node} (rank {b.rank}) are one machine, which calls itself {a.host}"
        for a, b in pairs
        if a.node != b.node and (a.machine, a.network) == (b.machine, b.network)
    ]
    findings = _finding("nodes_are_one", one)
    across = [(a, b) for a, b in pairs if a.site != b.site]
    for transport in transports:
        carried = [medium(transport, a, b, environ) for a, b in across or pairs]
        for name in ("shared memory", "loopback"):
            count = carried.count(name)
            if count and (across or count == len(pairs)):
                a, b = (across or pairs)[carried.index(name)]
                which = "pairs of ranks in different sites" if across else "pairs of ranks"
                detail = (
                    f"{transport}: {count} of {len(carried)} {which} sit on one machine and talk through {name}, such "
                    f"as {a.rank} and {b.rank} on {a.host}: their links say nothing about a network"
                )
                findings.append(Finding(name=name.replace(" ", "_"), detail=detail))
    return findings


def bad_samples(samples: Samples, expected: Iterable[Key]) -> list[Finding]:
    """`nan_samples`, `negative_samples` (zero included), `missing_samples`: each names rank, peer and size."""
    nan, negative, missing = [], [], []
    for key in expected:
        times = samples.get(key, np.empty(0))
        where = _place_of(key)
        if not len(times):
            missing.append(f"none {where}")
        if unknown := int((~np.isfinite(times)).sum()):
            nan.append(f"{unknown} of {len(times)} {where}")
        if below := int((times <= 0).sum()):
            negative.append(f"{below} of {len(times)} {where}, down to {np.nanmin(times):g} ns")
    return _finding("nan_samples", nan) + _finding("negative_samples", negative) + _finding("missing_samples", missing)


def sizes_skipped(skipped: Sequence[Skipped]) -> list[Finding]:
    """`sizes_skipped`: by pair, the sizes of ping-pongs and windows whose fewest repetitions the time did not allow."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for one in skipped:
        what = "ping-pong" if one.pattern == PING_PONG else f"{one.pattern} windows"
        groups.setdefault((what, one.transport, f"{one.source} to {one.target}"), []).append(one.size_bytes)
    said = [
        f"no time for {what} from {ends} over {transport} of {', '.join(map(str, sorted(sizes)))} bytes"
        for (what, transport, ends), sizes in groups.items()
    ]
    return _finding("sizes_skipped", said)


def usable(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The samples that can be fitted: finite and above zero."""
    return times[np.isfinite(times) & (times > 0)]


def two_modes(times: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """(lower mode, upper mode, share of the upper) where the samples (> 0) have two modes, else None.

    The cut into two groups that explains most of the variance of log(time) (Otsu 1979) must explain 85 % (a normal
    distribution: 64 %, a uniform: 75 %), leave a fifth on each side and medians a quarter apart. Of fewer than 20
    samples, where chance makes groups, it must explain 95 % and leave three on each side; of fewer than 10, none do.
    """
    count = len(times)
    if count < FEWEST_FOR_MODES:
        return None
    explained, fewest = (0.85, 0.2 * count) if count >= MANY_FOR_MODES else (0.95, 3)
    ordered = np.sort(times)
    logs = np.log(ordered)
    total = logs.var()
    if total == 0:
        return None
    below = np.arange(1, count)
    lower = np.cumsum(logs)[:-1] / below
    upper = (logs.sum() - np.cumsum(logs)[:-1]) / (count - below)
    between = below * (count - below) / count**2 * (upper - lower) ** 2
    cut = int(between.argmax()) + 1
    low, high = float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))
    if between.max() < explained * total or min(cut, count - cut) < fewest or high < 1.25 * low:
        return None
    return low, high, 1 - cut / count


def bimodal(samples: Samples) -> list[Finding]:
    """`bimodal`: sizes whose samples have two modes, so that their median describes neither."""
    said = []
    for key, times in samples.items():
        if modes := two_modes(usable(times)):
            low, high, share = modes
            said.append(f"{_place_of(key)}: {low / 1e3:.1f} us, but {high / 1e3:.1f} us in {share:.0%} of the samples")
    return _finding("bimodal", said)


def protocol_switches(links: Sequence[Link]) -> list[Finding]:
    """`protocol_switch`: links that one line of alpha and beta does not describe, and where their lines change."""
    said = []
    for link in links:
        lines = pieces(link.sizes_bytes, link.medians_ns)
        if len(lines) > 1:
            misfits = residuals(fit_line(link.sizes_bytes, link.medians_ns), link.sizes_bytes, link.medians_ns)
            worst = max(range(len(misfits)), key=lambda i: abs(misfits[i]))
            cuts = ", ".join(str(line.smallest_bytes) for line in lines[1:])
            said.append(
                f"{_name(link)} changes at {cuts} bytes, one line is off by {misfits[worst]:+.0%} at "
                f"{link.sizes_bytes[worst]} bytes"
            )
    return _finding("protocol_switch", said)


def unit_slips(links: Sequence[Link], site_of_rank: Sequence[int]) -> list[Finding]:
    """`unit_slip`: alpha or bandwidth off by about 1000 or 1024 from the neighbours. `far_from_neighbours`: by over 10.

    Neighbours are the links of the same transport between the same two sites, in both directions. Where there are
    fewer than two, a slip is looked for among all links of the transport that do (or do not) cross sites; they say
    nothing of what is far: sites may well lie ten times as far apart as others.
    """
    slips, far = [], []

    same_sites, same_kind = (_grouped(links, site_of_rank, by) for by in (_between, _kind))

    for quantity in ("latency_ns", "bandwidth_bytes_per_s"):
        slipped: list[Link] = []
        for link in links:
            near = same_sites[_between(link, site_of_rank)]
            near = near if len(near) > 2 else same_kind[_kind(link, site_of_rank)]
            away = _times_from(link, (x for x in near if x is not link), quantity)
            if away is not None and UNIT_SLIP[0] <= away.factor <= UNIT_SLIP[1]:
                slips.append(f"{away}, as a slip of units by 1000 or 1024 would be")
                slipped.append(link)
        for link in (x for x in links if x not in slipped):
            near = same_sites[_between(link, site_of_rank)]
            away = _times_from(link, (x for x in near if x is not link and x not in slipped), quantity)
            if away is not None and away.factor > FAR:
                far.append(str(away))
    return _finding("unit_slip", slips) + _finding("far_from_neighbours", far)


class _Away(NamedTuple):
    """How many times a link's `quantity` is from the usual one of its neighbours."""

    link: Link
    quantity: str
    factor: float
    usual: float

    def __str__(self) -> str:
        own = f"{_name(self.link)}: {self.quantity} = {getattr(self.link, self.quantity)}"
        return f"{own}, {self.factor:.4g} times from its neighbours' {self.usual:.0f}"


def _times_from(link: Link, neighbours: Iterable[Link], quantity: str) -> _Away | None:
    """None where either is not known, or zero."""
    own, others = getattr(link, quantity), [value for x in neighbours if (value := getattr(x, quantity))]
    if not own or not others:
        return None
    usual = median(others)
    return _Away(link, quantity, max(own / usual, usual / own), usual)


def slow_ranks(links: Sequence[Link], site_of_rank: Sequence[int], node_of_rank: Sequence[str] = ()) -> list[Finding]:
    """`slow_rank`: a rank at least twice as slow to its peers as others of its site are to the same peers.

    For every peer its link (alpha; ns per byte) is divided by the median of the same peer's links with the other ranks
    of this rank's site, or, where it is alone there, of all links of that kind that do not touch it; the rank's score
    is the median over its peers.
    """
    said = []
    for transport in dict.fromkeys(link.transport for link in links):
        own = [link for link in links if link.transport == transport]
        for quantity, value in (("alpha", _alpha), ("time per byte", _beta)):
            cost = {(link.source, link.target): value(link) for link in own}
            for rank in sorted({link.source for link in own}):
                ratios = [
                    cost[pair] / usual
                    for pair in cost
                    if rank in pair and (usual := _usual(cost, rank, pair, site_of_rank)) > 0
                ]
                if ratios and (score := median(ratios)) >= SLOW_RANK:
                    who = f"rank {rank} ({node_of_rank[rank]})" if node_of_rank else f"rank {rank}"
                    said.append(f"{transport}: {who}'s {quantity} is {score:.1f} times that of its peers")
    return _finding("slow_rank", said)


def _usual(
    cost: Mapping[tuple[int, int], float], rank: int, pair: tuple[int, int], site_of_rank: Sequence[int]
) -> float:
    """What the link of `rank` in `pair` would cost by the links of the others; 0 where there are none."""
    peer = pair[0] if pair[1] == rank else pair[1]
    site = site_of_rank[rank]
    others = [r for r in range(len(site_of_rank)) if r not in (rank, peer) and site_of_rank[r] == site]
    alike = [cost[p] for r in others if (p := (r, peer) if pair[1] == rank else (peer, r)) in cost]
    if not alike:
        crosses = site != site_of_rank[peer]
        alike = [
            c for (a, b), c in cost.items() if rank not in (a, b) and (site_of_rank[a] != site_of_rank[b]) == crosses
        ]
    return median(alike) if alike else 0.0


def _alpha(link: Link) -> float:
    return float(link.latency_ns)


def _beta(link: Link) -> float:
    return 1e9 / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0


def _grouped(
    links: Sequence[Link], site_of_rank: Sequence[int], by: Callable[[Link, Sequence[int]], Hashable]
) -> dict[Hashable, list[Link]]:
    groups: dict[Hashable, list[Link]] = defaultdict(list)
    for link in links:
        groups[by(link, site_of_rank)].append(link)
    return groups


def _between(link: Link, site_of_rank: Sequence[int]) -> tuple[str, frozenset[int]]:
    return link.transport, frozenset((site_of_rank[link.source], site_of_rank[link.target]))


def _kind(link: Link, site_of_rank: Sequence[int]) -> tuple[str, bool]:
    return link.transport, site_of_rank[link.source] != site_of_rank[link.target]


def _name(link: Link) -> str:
    return f"{link.transport} {link.source}->{link.target}"


def _place_of(key: Key) -> str:
    transport, source, target, size = key
    return f"from rank {source} to peer {target}, {size} bytes over {transport}"


def _finding(name: str, said: Sequence[str]) -> list[Finding]:
    """One finding with the first few of what there is to say; none where there is nothing."""
    if not said:
        return []
    more = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return [Finding(name=name, detail="; ".join(said[:SHOWN]) + more)]
