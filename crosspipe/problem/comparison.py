"""What has changed between measurements of the same thing, by how much, and whether that is more than noise.

Each quantity is compared with its newest earlier value. It is beyond noise where its 95 % interval lies outside all
that earlier measurements have seen (the hull of their intervals) and it moved by more than 5 %: within one session
intervals are narrow, from day to day the same machine differs by more; the more history, the surer the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from crosspipe.problem.costs import BlockCosts
from crosspipe.problem.links import Link, LinkTable
from crosspipe.problem.sites import site_links
from crosspipe.problem.spread import Spread

NOISE = 0.05
T = TypeVar("T")


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity then and now: `before` None where it is new, `after` None where it is gone.

    `what` is a place such as `gloo site 0 -> 1`, `gloo 0 (nid001) -> 2 (nid007)` or `s1.c0.F`; `unit` is "ns",
    "ns/byte", "bytes/s" (of the largest window one way) or "bytes".
    """

    what: str
    unit: str
    before: Spread | None
    after: Spread | None
    beyond_noise: bool

    @property
    def ratio(self) -> float | None:
        """after / before of the medians; None where one is missing or before is 0."""
        if self.before is None or self.after is None or self.before.median == 0:
            return None
        return self.after.median / self.before.median


def compare_links(earlier: Sequence[LinkTable], now: LinkTable) -> tuple[Change, ...]:
    """Alpha, time per byte and largest window of every link and site pair against `earlier` tables, oldest first.

    A link is the same where its ranks sit on the same nodes; site pairs are compared wherever the ranks sat, with the
    hull of the intervals of their pairs of ranks.
    """
    return _compare(earlier, now, _link_values)


def compare_blocks(earlier: Sequence[BlockCosts], now: BlockCosts) -> tuple[Change, ...]:
    """Every measured duration, and what each block keeps, against `earlier` costs of the same split, oldest first."""
    return _compare([costs for costs in earlier if costs.layers == now.layers], now, _block_values)


def _compare(
    earlier: Sequence[T], now: T, values: Callable[[T], Mapping[tuple[str, str], Spread]]
) -> tuple[Change, ...]:
    seen: dict[tuple[str, str], list[Spread]] = {}
    for one in earlier:
        for key, value in values(one).items():
            seen.setdefault(key, []).append(value)
    newest = values(earlier[-1]) if earlier else {}
    current = values(now)
    changes = [
        Change(
            what=what,
            unit=unit,
            before=seen[what, unit][-1] if (what, unit) in seen else None,
            after=after,
            beyond_noise=_beyond(seen.get((what, unit), []), after),
        )
        for (what, unit), after in current.items()
    ]
    gone = [
        Change(what=what, unit=unit, before=before, after=None, beyond_noise=False)
        for (what, unit), before in newest.items()
        if (what, unit) not in current
    ]
    return (*changes, *gone)


def _beyond(seen: Sequence[Spread], after: Spread) -> bool:
    if not seen:
        return False
    lowest = min(value.median if value.low is None else value.low for value in seen)
    highest = max(value.median if value.high is None else value.high for value in seen)
    low, high = (after.median if edge is None else edge for edge in (after.low, after.high))
    moved = abs(after.median - seen[-1].median) > NOISE * abs(seen[-1].median)
    return moved and (low > highest or high < lowest)


def _link_values(table: LinkTable) -> dict[tuple[str, str], Spread]:
    values: dict[tuple[str, str], Spread] = {}
    for transport in table.transports():
        for pair in site_links(table, transport):
            name = f"{transport} site {pair.source_site} -> {pair.target_site}"
            own = [
                x
                for x in table.links
                if (x.transport, table.site_of_rank[x.source], table.site_of_rank[x.target])
                == (transport, pair.source_site, pair.target_site)
            ]
            values[name, "ns"] = _hull(pair.latency_ns, map(_latency, own))
            values[name, "ns/byte"] = _hull(_per_byte(pair.bandwidth_bytes_per_s).median, map(_inverse, own))
            if pair.streamed_bytes_per_s is not None:
                rates = (link.largest_window() for link in own)
                values[name, "bytes/s"] = _hull(pair.streamed_bytes_per_s, (rate for rate in rates if rate is not None))
    for link in table.links:
        name = f"{link.transport} {_end(table, link.source)} -> {_end(table, link.target)}"
        values[name, "ns"], values[name, "ns/byte"] = _latency(link), _inverse(link)
        if (rate := link.largest_window()) is not None:
            values[name, "bytes/s"] = rate
    return values


def _end(table: LinkTable, rank: int) -> str:
    return f"{rank} ({table.node_of_rank[rank]})" if table.node_of_rank else str(rank)


def _latency(link: Link) -> Spread:
    return link.latency or _exactly(link.latency_ns)


def _inverse(link: Link) -> Spread:
    return link.inverse_bandwidth or _per_byte(link.bandwidth_bytes_per_s)


def _per_byte(bandwidth: int | None) -> Spread:
    """A bandwidth as ns per byte; None is 0."""
    return _exactly(0 if bandwidth is None else 1e9 / bandwidth)


def _hull(median: float, spreads: Iterable[Spread]) -> Spread:
    """All that several measurements of a quantity have seen."""
    own = list(spreads)
    low = min(one.median if one.low is None else one.low for one in own)
    high = max(one.median if one.high is None else one.high for one in own)
    return Spread(median=median, low=min(low, median), high=max(high, median), samples=len(own), interval="range")


def _exactly(value: float) -> Spread:
    return Spread(median=value, low=value, high=value, samples=1)


def _block_values(costs: BlockCosts) -> dict[tuple[str, str], Spread]:
    values = {(name, "ns"): spread for name, spread in costs.spreads.items()}
    for stage, row in enumerate(costs.blocks):
        for chunk, cost in enumerate(row):
            values[f"s{stage}.c{chunk} kept", "bytes"] = _exactly(cost.forward_keep_bytes)
    return values
