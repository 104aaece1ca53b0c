"""From links between ranks to links between sites: the median over the rank pairs, their range, and symmetry."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median

import msgspec

from crosspipe.problem.links import Link, LinkTable
from crosspipe.problem.spread import Spread

ALIKE = 0.1  # two directions are symmetric where alpha and bandwidth differ by no more than this share, or than noise


class SiteLink(msgspec.Struct, frozen=True, kw_only=True):
    """One directed pair of sites (or the inside of one) over one transport: medians over its pairs of ranks.

    `latency_range_ns` and `bandwidth_range_bytes_per_s` are the smallest and largest of the pairs. A bandwidth of None
    is no byte cost. `streamed_bytes_per_s` is the median of the largest one-way windows (None: not measured).
    `symmetric` compares with the reverse direction; None where that was not measured. Ping-pong times both directions
    together, so asymmetry is seen in the windows, which go one way, and in given tables.
    """

    source_site: int
    target_site: int
    transport: str
    pairs: int
    latency_ns: int
    latency_range_ns: tuple[int, int]
    bandwidth_bytes_per_s: int | None
    bandwidth_range_bytes_per_s: tuple[int, int] | None
    streamed_bytes_per_s: int | None
    symmetric: bool | None


def site_links(table: LinkTable, transport: str | None = None) -> tuple[SiteLink, ...]:
    """All measured ordered site pairs over `transport` (default: the run's, else the first measured), in order."""
    measured = table.transports()
    wanted = transport or (table.run_transport if table.run_transport in measured else measured[0] if measured else "")
    groups: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for link in table.links:
        if link.transport == wanted:
            groups[table.site_of_rank[link.source], table.site_of_rank[link.target]].append(link)
    one_way = {pair: _medians(links) for pair, links in groups.items()}
    found = []
    for (source, target), links in sorted(groups.items()):
        latencies = [link.latency_ns for link in links]
        bandwidths = [b for link in links if (b := link.bandwidth_bytes_per_s) is not None]
        here, back = one_way[source, target], one_way.get((target, source))
        streamed, streamed_back = (_streamed(groups.get(pair, [])) for pair in ((source, target), (target, source)))
        alike = back is not None and all(
            _alike(one, other) or noise
            for one, other, noise in zip(
                (*here, streamed), (*back, streamed_back), _overlaps(links, groups[target, source]), strict=True
            )
        )
        found.append(
            SiteLink(
                source_site=source,
                target_site=target,
                transport=wanted,
                pairs=len(links),
                latency_ns=here[0],
                latency_range_ns=(min(latencies), max(latencies)),
                bandwidth_bytes_per_s=here[1],
                bandwidth_range_bytes_per_s=(min(bandwidths), max(bandwidths)) if bandwidths else None,
                streamed_bytes_per_s=streamed,
                symmetric=None if back is None else alike,
            )
        )
    return tuple(found)


def _medians(links: list[Link]) -> tuple[int, int | None]:
    # a pair without byte cost is faster than any
    bandwidth = median(math.inf if link.bandwidth_bytes_per_s is None else link.bandwidth_bytes_per_s for link in links)
    return round(median(link.latency_ns for link in links)), None if bandwidth == math.inf else round(bandwidth)


def _streamed(links: list[Link]) -> int | None:
    """Median over the pairs of what their largest one-way window carried, in bytes/s."""
    rates = [rate.median for link in links if (rate := link.largest_window()) is not None]
    return round(median(rates)) if rates else None


def _overlaps(here: list[Link], back: list[Link]) -> tuple[bool, bool, bool]:
    """Whether the usual 95 % intervals of alpha, time per byte and windows (never) of two directions overlap."""

    def usual(spreads: list[Spread | None]) -> tuple[float, float] | None:
        lows = [s.low for s in spreads if s is not None and s.low is not None]
        highs = [s.high for s in spreads if s is not None and s.high is not None]
        return (median(lows), median(highs)) if lows and highs else None

    def overlap(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
        return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]

    alpha, per_byte = (
        overlap(usual([getattr(x, name) for x in here]), usual([getattr(x, name) for x in back]))
        for name in ("latency", "inverse_bandwidth")
    )
    return alpha, per_byte, False


def _alike(one: int | None, other: int | None) -> bool:
    return abs((one or 0) - (other or 0)) <= ALIKE * max(one or 0, other or 0)
