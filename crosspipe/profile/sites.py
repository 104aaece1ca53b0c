"""From links between ranks to links between sites: the median over the rank pairs, their range, and symmetry."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import msgspec

from crosspipe.problem import Link, LinkTable

ALIKE = 0.1  # two directions are symmetric where alpha and bandwidth differ by no more than this share


class SiteLink(msgspec.Struct, frozen=True, kw_only=True):
    """One directed pair of sites (or the inside of one) over one transport: medians over its pairs of ranks.

    `latency_range_ns` and `bandwidth_range_bytes_per_s` are the smallest and largest of the pairs. A bandwidth of None
    is no byte cost. `symmetric` compares with the reverse direction; None where that was not measured. Ping-pong times
    both directions together, so asymmetry is seen in given tables and one-way measurements only.
    """

    source_site: int
    target_site: int
    transport: str
    pairs: int
    latency_ns: int
    latency_range_ns: tuple[int, int]
    bandwidth_bytes_per_s: int | None
    bandwidth_range_bytes_per_s: tuple[int, int] | None
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
                symmetric=None if back is None else _alike(here[0], back[0]) and _alike(here[1] or 0, back[1] or 0),
            )
        )
    return tuple(found)


def _medians(links: list[Link]) -> tuple[int, int | None]:
    bandwidths = [b for link in links if (b := link.bandwidth_bytes_per_s) is not None]
    # a pair without byte cost is faster than any: more than half of them, and the median has none either
    bandwidth = round(median(bandwidths)) if 2 * len(bandwidths) > len(links) else None
    return round(median(link.latency_ns for link in links)), bandwidth


def _alike(one: int, other: int) -> bool:
    return abs(one - other) <= ALIKE * max(one, other)
