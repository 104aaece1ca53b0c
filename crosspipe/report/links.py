"""The page's section about links: from site to site, in windows and together, how well a line fits, and every link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from crosspipe.problem import Link, LinkTable, Problem, Spread
from crosspipe.problem.links import Contention
from crosspipe.problem.sites import site_links
from crosspipe.report import measured_prose as prose
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.figures import Picture
from crosspipe.report.markup import Content, folded, table, tag
from crosspipe.report.measurements import Profile
from crosspipe.report.sections import figures
from crosspipe.report.wording import MISSING, duration, number, size


def link_section(
    profiles: Sequence[Profile[LinkTable]],
    artifacts: Mapping[str, PointArtifacts],
    rows: Sequence[dict[str, Any]],
    drawn: Sequence[Picture],
) -> Content:
    """What crossing sites cost in each problem, and what was measured of the links; `drawn` are its pictures."""
    parts: list[Content] = [_crossing(artifacts, rows)]
    if not profiles:
        parts.append(tag("p", "No link profile is in the store for this campaign.", class_="missing"))
    parts.append(figures(drawn) if drawn else None)
    for profile in profiles:
        links, name = profile.now.found, profile.now.short
        parts += [_site_pairs(links, name), _windows(links, name), _contention(links, name), _fit(links, name)]
        parts += [_pieces(links, name), _every_link(links, name)]
    return parts


def _crossing(artifacts: Mapping[str, PointArtifacts], rows: Sequence[dict[str, Any]]) -> Content:
    """The problems' delays in ms and, for their largest message, in Gbit/s; None where no problem is known."""
    lines: dict[tuple[str, ...], None] = {}
    for row in rows:
        problem = artifacts[row["point"]].problem
        if problem is None:
            continue
        message_bytes, serialisation_ms = _message_bytes(problem), row["serialisation_ms"]
        rate = number(message_bytes * 8 / serialisation_ms / 1e6) if serialisation_ms and message_bytes else MISSING
        times = (number(row[n]) for n in ("forward_reference_ms", "latency_ms", "serialisation_ms"))
        lines[(row["delay"], *times, size(message_bytes), rate)] = None
    if not lines:
        return None
    head = ["delay", "T_F ms", "latency ms", "serialisation ms", "largest message", "equals Gbit/s"]
    caption = "What a message across sites costs in the problems solved, at the pace of the run"
    return folded(table(head, list(lines), caption=caption, text=("delay",)), len(lines), "problems")


def _message_bytes(problem: Problem) -> int:
    """Largest message that crosses sites, in bytes."""
    sizes = [0]
    for position in range(problem.positions):
        stage, chunk = problem.place(position)
        cost = problem.costs[stage][chunk]
        for kind, message_bytes in (("F", cost.forward_message_bytes), ("D", cost.backward_message_bytes)):
            if problem.crosses_sites(kind, position):
                sizes.append(message_bytes)
    return max(sizes)


def _site_pairs(links: LinkTable, name: str) -> Content:
    """Medians over the pairs of ranks from site to site, with least and most, and whether the way back is alike."""
    words = {None: "way back not measured", True: "yes", False: "no"}
    lines = [
        [
            between_sites(pair.source_site, pair.target_site), pair.transport, pair.pairs, duration(pair.latency_ns),
            _range(*map(duration, pair.latency_range_ns)), _gbit(pair.bandwidth_bytes_per_s),
            _range(*map(_gbit, pair.bandwidth_range_bytes_per_s)) if pair.bandwidth_range_bytes_per_s else MISSING,
            _gbit(pair.streamed_bytes_per_s), words[pair.symmetric],
        ]
        for transport in links.transports()
        for pair in site_links(links, transport)
    ]  # fmt: skip
    head = ["sites", "transport", "pairs of ranks", "latency (alpha)", "least to most", "Gbit/s (1/beta)"]
    head += ["least to most Gbit/s", "largest window Gbit/s", "symmetric"]
    caption = f"From site to site, {name}: medians over the pairs of ranks; the run's transport is "
    shown = table(head, lines, caption=caption + links.run_transport, text=("transport", "symmetric"))
    return [folded(shown, len(lines), "pairs of sites"), tag("p", prose.SYMMETRY, class_="soft")]


def _windows(links: LinkTable, name: str) -> Content:
    """Rates of windows one way and both ways, by message size; None where none were stated."""
    seen: dict[tuple[str, int, int, int], dict[str, list[Spread]]] = defaultdict(lambda: defaultdict(list))
    for link in links.links:
        here, there = links.site_of_rank[link.source], links.site_of_rank[link.target]
        for stream in link.streams:
            seen[link.transport, here, there, stream.size_bytes][stream.pattern].append(stream.bytes_per_s)
    if not seen:
        return None
    lines = []
    for (transport, here, there, size_bytes), rates in sorted(seen.items()):
        # as much went either way, and it was measured from the lower rank of a pair
        both = rates.get("both_ways") or seen.get((transport, there, here, size_bytes), {}).get("both_ways", [])
        cells = [_medians(rates.get("one_way", [])), _medians(both)]
        lines.append([between_sites(here, there), transport, size(size_bytes), *cells])
    head = ["sites", "transport", "message", "one way Gbit/s", "both ways at once Gbit/s, each"]
    caption = f"Windows of messages in flight, {name}: medians over the pairs of ranks [least, most]"
    shown = table(head, lines, caption=caption, text=("transport",))
    return [folded(shown, len(lines), "windows"), tag("p", prose.WINDOWS, class_="soft")]


def _contention(links: LinkTable, name: str) -> Content:
    """What pairs of ranks of the same two sites get alone and together; None where that was not measured."""
    if not links.contention:
        return None
    lines = [
        [
            between_sites(seen.source_site, seen.target_site), seen.transport, len(seen.pairs), size(seen.size_bytes),
            _total(seen.alone), _total(seen.together), f"{100 * seen.kept_share:.0f} %", _verdict(seen),
        ]
        for seen in links.contention
    ]  # fmt: skip
    head = ["sites", "transport", "pairs at once", "message", "alone, sum Gbit/s", "together, sum Gbit/s", "kept"]
    head.append("so the wire is")
    caption = f"Contention, {name}: pairs of ranks of the same two sites, one by one and at once"
    return [
        table(head, lines, caption=caption, text=("transport", "so the wire is")),
        tag("p", prose.CONTENTION, class_="soft"),
    ]


def _verdict(seen: Contention) -> str:
    """What the kept share says: 1 is nothing shared, 1 over the number of pairs is one wire for all."""
    if not seen.enough_cores:
        return "not known: there were fewer cores than ranks"
    one_wire = 1 / len(seen.pairs)
    if seen.kept_share >= 1 - 0.25 * (1 - one_wire):
        return "wide enough for all"
    return "shared by all" if seen.kept_share <= one_wire + 0.25 * (1 - one_wire) else "shared in part"


def _fit(links: LinkTable, name: str) -> Content:
    """How far the one line of alpha and beta is off at each size; None without medians."""
    sizes = sorted({size_bytes for link in links.links for size_bytes in link.sizes_bytes})
    if not sizes:
        return None
    groups: dict[tuple[str, int, int], list[Link]] = defaultdict(list)
    for link in links.links:
        groups[link.transport, links.site_of_rank[link.source], links.site_of_rank[link.target]].append(link)
    lines = []
    for (transport, here, there), own in groups.items():
        off: dict[int, list[float]] = defaultdict(list)
        for link in own:
            for size_bytes, residual in zip(link.sizes_bytes, link.residuals, strict=True):
                off[size_bytes].append(residual)
        lines.append([between_sites(here, there), transport, *(_off(off.get(size_bytes)) for size_bytes in sizes)])
    head = ["sites", "transport", *map(size, sizes)]
    caption = f"How far alpha + beta × bytes is off the median of each message size, {name}: medians over the links"
    return folded(table(head, lines, caption=caption, text=("transport",)), len(lines), "pairs of sites, by size")


def _pieces(links: LinkTable, name: str) -> Content:
    """The lines of links that change their protocol; None where one line does for all."""
    lines = [
        [
            _ends(links, link), link.transport, f"{size(piece.smallest_bytes)} to {size(piece.largest_bytes)}",
            duration(piece.latency_ns), _gbit(piece.bandwidth_bytes_per_s),
        ]
        for link in links.links
        for piece in link.pieces
    ]  # fmt: skip
    if not lines:
        return None
    caption = f"Links that one line does not describe, {name}: a line per protocol of the transport"
    head = ["link", "transport", "message", "latency (alpha)", "Gbit/s (1/beta)"]
    return folded(table(head, lines, caption=caption, text=("transport", "message")), len(lines), "pieces of lines")


def _every_link(links: LinkTable, name: str) -> Content:
    head = ["link", "across sites", "transport", "latency (alpha)", "95 % interval", "bandwidth (1/beta)", "misfit"]
    lines = [_link_row(links, link) for link in links.links]
    caption = f"Measured links, artifact {name}; the run's transport is {links.run_transport}"
    shown = table(head, lines, caption=caption, text=("across sites", "transport"))
    return folded(shown, len(lines), "measured links")


def _link_row(links: LinkTable, link: Link) -> list[Content]:
    bandwidth = link.bandwidth_bytes_per_s
    return [
        _ends(links, link),
        "yes" if links.site_of_rank[link.source] != links.site_of_rank[link.target] else "no",
        link.transport,
        duration(link.latency_ns),
        _interval(link.latency),
        MISSING if bandwidth is None else f"{_gbit(bandwidth)} Gbit/s",
        f"{100 * link.residual:.1f} %",
    ]


def _ends(links: LinkTable, link: Link) -> str:
    def place(rank: int) -> str:
        node = links.node_of_rank[rank] if links.node_of_rank else "node not recorded"
        return f"rank {rank} ({node}, site {links.site_of_rank[rank]})"

    return f"{place(link.source)} → {place(link.target)}"


def between_sites(here: int, there: int) -> str:
    """A directed pair of sites in words."""
    return f"inside site {here}" if here == there else f"site {here} → site {there}"


def _interval(spread: Spread | None) -> str:
    if spread is None or spread.low is None or spread.high is None:
        return MISSING
    return _range(duration(spread.low), duration(spread.high))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _gbit(bytes_per_s: float | None) -> str:
    return MISSING if bytes_per_s is None else number(bytes_per_s * 8 / 1e9)


def _medians(rates: Sequence[Spread]) -> str:
    """The median of medians [least, most]."""
    if not rates:
        return MISSING
    medians = [rate.median for rate in rates]
    middle = _gbit(median(medians))
    return middle if len(medians) == 1 else f"{middle} [{_gbit(min(medians))}, {_gbit(max(medians))}]"


def _total(rates: Sequence[Spread]) -> str:
    return _gbit(sum(rate.median for rate in rates))


def _off(residuals: Sequence[float] | None) -> str:
    if not residuals:
        return MISSING
    return f"{100 * median(residuals):+.1f} %".replace("-", "−")
