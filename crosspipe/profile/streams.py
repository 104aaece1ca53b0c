"""Windows of messages in flight: which to measure, and the rates they show, one way, both ways, and pairs together.

A window of W messages of s bytes, acknowledged by a byte, takes one empty round trip and W*s bytes of the wire. So a
direction's rate is W*s over what the window took less an empty round trip, however long the link
is (after LogGP's G; Alexandrov et al. 1995, Kielmann et al. 2000). It is stated only where the bytes took the longer
part: below that, it would be the difference of two numbers that are nearly the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from numpy.typing import NDArray

from crosspipe.problem import Link, Spread
from crosspipe.problem.links import Contention, Stream
from crosspipe.problem.spread import spread
from crosspipe.profile.pingpong import BOTH_WAYS, ONE_WAY, TOGETHER
from crosspipe.profile.rounds import Round
from crosspipe.profile.samples import Windows

WINDOW_BYTES, MOST_BYTES = 4 * 2**20, 256 * 2**20
FILLS = 4  # how often a window fills the link: then its bytes take four fifths of the time
MOST_MESSAGES = 64  # as OSU's osu_bw has it
SMALLEST_BYTES = 16 * 2**10


def window_of(size_bytes: int, held_bytes: float = 0.0) -> int:
    """Messages of one size in flight: at least 2, at most 64, and as many as four times fill a link.

    `held_bytes` is what the link holds, bandwidth times round trip; 4 MiB of messages at least, 256 MiB at most.
    """
    wanted_bytes = min(MOST_BYTES, max(WINDOW_BYTES, FILLS * held_bytes))
    return min(MOST_MESSAGES, max(2, int(wanted_bytes // size_bytes)))


def stream_sizes(sizes_bytes: Sequence[int]) -> tuple[int, ...]:
    """Of the sizes of a ping-pong, those whose windows are worth measuring: 16 KiB and more, else the largest."""
    return tuple(size for size in sizes_bytes if size >= SMALLEST_BYTES) or (max(sizes_bytes),)


def patterns(source: int, target: int) -> tuple[str, ...]:
    """The names of the windows of one ordered pair; both ways only once a pair, from its lower rank."""
    return (ONE_WAY, BOTH_WAYS) if source < target else (ONE_WAY,)


def crossings(site_of_rank: Sequence[int]) -> tuple[Round, ...]:
    """For each ordered pair of sites with two ranks or more: as many disjoint (source, target) as there can be."""
    ranks = {site: [r for r, s in enumerate(site_of_rank) if s == site] for site in sorted(set(site_of_rank))}
    return tuple(
        tuple(zip(ranks[here], ranks[there], strict=False))
        for here in ranks
        for there in ranks
        if here != there and min(len(ranks[here]), len(ranks[there])) >= 2
    )


def rate(took_ns: NDArray, window_bytes: int, round_trip_ns: float) -> Spread | None:
    """Bytes/s of windows that took `took_ns` each, `round_trip_ns` of it empty; None where that is half or more."""
    took = spread(took_ns)
    if took.median < 2 * round_trip_ns:
        return None

    def of(time_ns: float | None) -> float | None:
        return None if time_ns is None or time_ns <= round_trip_ns else window_bytes * 1e9 / (time_ns - round_trip_ns)

    return Spread(median=of(took.median) or 0.0, low=of(took.high), high=of(took.low), samples=took.samples)


def with_streams(links: Sequence[Link], windows: Windows) -> tuple[Link, ...]:
    """The links with what their windows show. The empty round trip is twice `value_at(0)`."""
    found: dict[tuple[str, int, int], list[Stream]] = {}
    by_pair = {(link.transport, link.source, link.target): link for link in links}
    for (pattern, transport, source, target, size, window), took in windows.items():
        link = by_pair.get((transport, source, target))
        if pattern == TOGETHER or link is None:
            continue
        if seen := rate(took, window * size, 2 * link.value_at(0)[0]):
            stream = Stream(pattern=pattern, size_bytes=size, window=window, bytes_per_s=seen)
            found.setdefault((transport, source, target), []).append(stream)
    return tuple(
        msgspec.structs.replace(link, streams=tuple(found.get((link.transport, link.source, link.target), ())))
        for link in links
    )


def contention(
    links: Sequence[Link], windows: Windows, site_of_rank: Sequence[int], enough_cores: Mapping[Round, bool]
) -> tuple[Contention, ...]:
    """What pairs of the same two sites get alone (their `one_way` stream) and together; `enough_cores` per round."""
    alone = {
        (link.transport, link.source, link.target, stream.size_bytes): stream.bytes_per_s
        for link in links
        for stream in link.streams
        if stream.pattern == ONE_WAY
    }
    empty = {(link.transport, link.source, link.target): 2 * link.value_at(0)[0] for link in links}
    together: dict[tuple[str, int], dict[tuple[int, int], Spread]] = {}
    largest: dict[tuple[str, int], int] = {}
    for (pattern, transport, source, target, size, window), took in windows.items():
        if pattern == TOGETHER and (transport, source, target, size) in alone:
            seen = rate(took, window * size, empty[transport, source, target])
            if seen is not None:
                together.setdefault((transport, size), {})[source, target] = seen
                largest[transport, size] = max(window, largest.get((transport, size), 0))
    found = []
    for (transport, size), seen_by_pair in together.items():
        for pairs in crossings(site_of_rank):
            if not all(pair in seen_by_pair for pair in pairs):
                continue
            found.append(
                Contention(
                    source_site=site_of_rank[pairs[0][0]],
                    target_site=site_of_rank[pairs[0][1]],
                    transport=transport,
                    size_bytes=size,
                    window=largest[transport, size],
                    pairs=pairs,
                    alone=tuple(alone[transport, *pair, size] for pair in pairs),
                    together=tuple(seen_by_pair[pair] for pair in pairs),
                    enough_cores=enough_cores.get(pairs, True),
                )
            )
    return tuple(found)
