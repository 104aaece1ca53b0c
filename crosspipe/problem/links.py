"""Links: what a message costs between two places (alpha-beta, LogGP's L and G), and the table of all of them.

A message of s bytes takes alpha + beta*s; the sender's wire is busy for beta*s. `Hop` is what a Problem needs of one
boundary in one direction; `LinkTable` is what a measurement leaves behind.
"""

from __future__ import annotations

import math

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem.costs import check_whole
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


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One directed, measured link over one transport.

    `latency_ns` is alpha; `bandwidth_bytes_per_s` is 1/beta (inf allowed as None: no byte cost). `latency` and
    `inverse_bandwidth` (ns per byte) carry the 95 % intervals; `residual` is the median relative misfit of the line.
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

    def serialisation_ns(self, size_bytes: int) -> int:
        """beta*bytes in ns, rounded up."""
        if self.bandwidth_bytes_per_s is None:
            return 0
        return math.ceil(size_bytes * 1e9 / self.bandwidth_bytes_per_s)

    def delay_ns(self, size_bytes: int) -> int:
        """alpha + beta*bytes in ns: what one message takes on the idle link."""
        return self.latency_ns + self.serialisation_ns(size_bytes)


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reason to distrust a measurement: `name` in snake case, `detail` one sentence with the numbers."""

    name: str
    detail: str


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
