"""Links: what a message costs between two places (alpha-beta, LogGP's L and G), and the table of all of them.

A message of s bytes takes alpha + beta*s; the sender's wire is busy for beta*s. `Hop` is what a Problem needs of one
boundary in one direction; `LinkTable` is what a measurement leaves behind.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem.costs import check_whole
from crosspipe.problem.findings import Finding
from crosspipe.problem.spread import Spread


class Hop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One boundary in one direction: latency and serialisation of its message in ns, and the wire it queues for.

    `wire` names the directed physical link; every message with that name shares it, one at a time. None: nothing is
    shared, messages never queue. Serialisation is beta*bytes of this boundary's message, rounded up to ns.
    """

    latency_ns: int = 0
    serialisation_ns: int = 0
    wire: str | None = None

    def __post_init__(self) -> None:
        for name in ("latency_ns", "serialisation_ns"):
            check_whole(name, getattr(self, name), "give nanoseconds")

    @property
    def delay_ns(self) -> int:
        """Latency plus serialisation: what a message takes on an idle wire, in ns."""
        return self.latency_ns + self.serialisation_ns


class Piece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """alpha + beta*s on messages of `smallest_bytes` to `largest_bytes`: one protocol of the transport."""

    smallest_bytes: int
    largest_bytes: int
    latency_ns: int
    bandwidth_bytes_per_s: int | None


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a link carries with a window of messages in flight: `bytes_per_s` of one direction, with its 95 % interval.

    `pattern` is "one_way", or "both_ways" where as much came the other way meanwhile.
    """

    pattern: str
    size_bytes: int
    window: int
    bytes_per_s: Spread


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One directed, measured link over one transport.

    `latency_ns` is alpha; `bandwidth_bytes_per_s` is 1/beta (inf allowed as None: no byte cost). `latency` and
    `inverse_bandwidth` (ns per byte) carry the 95 % intervals; `residual` is the median relative misfit of the line.
    `pieces` has a line per protocol where one line does not do (else it is empty), `streams` what windows carry.
    """

    source: int
    target: int
    transport: str
    latency_ns: int
    bandwidth_bytes_per_s: int | None
    latency: Spread | None = None
    inverse_bandwidth: Spread | None = None
    residual: float = 0.0
    sizes_bytes: tuple[int, ...] = ()
    medians_ns: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    streams: tuple[Stream, ...] = ()

    @property
    def residuals(self) -> tuple[float, ...]:
        """Relative misfit of the one line, line / median - 1, at each of `sizes_bytes`."""
        return tuple(self.delay_ns(s) / median - 1 for s, median in zip(self.sizes_bytes, self.medians_ns, strict=True))

    def largest_window(self) -> Spread | None:
        """Bytes/s one way with the largest messages in flight; None where no rate is known."""
        one_way = [stream for stream in self.streams if stream.pattern == "one_way"]
        return max(one_way, key=lambda stream: stream.size_bytes).bytes_per_s if one_way else None

    def serialisation_ns(self, size_bytes: int) -> int:
        """beta*bytes in ns, rounded up."""
        if self.bandwidth_bytes_per_s is None:
            return 0
        return math.ceil(size_bytes * 1e9 / self.bandwidth_bytes_per_s)

    def delay_ns(self, size_bytes: int) -> int:
        """alpha + beta*bytes in ns: what one message takes on the idle link."""
        return self.latency_ns + self.serialisation_ns(size_bytes)

    def hop(self, size_bytes: int, wire: str | None = None) -> Hop:
        """What a message of `size_bytes` costs as a boundary: alpha, and on the wire the rest of `value_at`."""
        beyond_ns = 0 if size_bytes == 0 else max(0, self.value_at(size_bytes)[0] - self.latency_ns)
        return Hop(latency_ns=self.latency_ns, serialisation_ns=beyond_ns, wire=wire)

    def value_at(self, size_bytes: int) -> tuple[int, bool]:
        """What one message of `size_bytes` takes in ns, from the medians; and whether that was in their range.

        Between two measured sizes: on the straight line between them. Outside: the nearest median, plus or minus the
        link's fitted bytes; a caller should say so. Without medians (a given link): its line.
        """
        if not self.sizes_bytes:
            return self.delay_ns(size_bytes), False
        smallest, largest = self.sizes_bytes[0], self.sizes_bytes[-1]
        if size_bytes > largest:
            return self.medians_ns[-1] + self.serialisation_ns(size_bytes - largest), False
        if size_bytes < smallest:
            return max(0, self.medians_ns[0] - self.serialisation_ns(smallest - size_bytes)), False
        for (low, start), (high, end) in pairwise(zip(self.sizes_bytes, self.medians_ns, strict=True)):
            if size_bytes <= high:
                return round(start + (end - start) * (size_bytes - low) / (high - low)), True
        return self.medians_ns[0], True  # a single size, and it is this one


class Contention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What disjoint pairs of ranks of the same two sites get one by one, and all at once, in one direction.

    `alone` and `together` are bytes/s per pair of `pairs` (source, target), with up to `window` messages of
    `size_bytes` in flight. `enough_cores` is False where one machine had more busy ranks than cores: that is
    contention for cores then.
    """

    source_site: int
    target_site: int
    transport: str
    size_bytes: int
    window: int
    pairs: tuple[tuple[int, int], ...]
    alone: tuple[Spread, ...]
    together: tuple[Spread, ...]
    enough_cores: bool = True

    @property
    def kept_share(self) -> float:
        """Sum of the rates together over the sum alone: 1 where nothing is shared, 1/pairs where all is."""
        return sum(rate.median for rate in self.together) / sum(rate.median for rate in self.alone)


class LinkTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="link_table"):
    """Every measured link between ranks (`links`), where each rank sits, and what looked wrong.

    `site_of_rank[r]` and `node_of_rank[r]` place rank r. `between(a, b)` is the link from rank a to rank b over the
    preferred transport (the run's own, else the first measured).
    """

    schema: int = 1
    links: tuple[Link, ...]
    site_of_rank: tuple[int, ...]
    node_of_rank: tuple[str, ...] = ()
    run_transport: str = "gloo"
    contention: tuple[Contention, ...] = ()
    findings: tuple[Finding, ...] = ()
    environment: dict[str, str] = {}

    def transports(self) -> tuple[str, ...]:
        """Transports in the order measured."""
        return tuple(dict.fromkeys(link.transport for link in self.links))

    def between(self, source: int, target: int, transport: str | None = None) -> Link:
        """The link from rank `source` to rank `target`; FieldError if it was not measured."""
        found = {x.transport: x for x in self.links if (x.source, x.target) == (source, target)}
        wanted = transport or self.run_transport
        if wanted in found:
            return found[wanted]
        if found and transport is None:
            return next(iter(found.values()))
        raise FieldError("links", f"{source}->{target}", "this pair was not measured", "profile it or give the network")
