"""The page's section that compares a campaign's measurements with earlier ones: what changed, by how much, and history.

What counts as noise is `crosspipe.problem.comparison`'s; here it is put into words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from crosspipe.problem import BlockCosts, LinkTable, Spread
from crosspipe.problem.comparison import Change, compare_blocks, compare_links
from crosspipe.problem.sites import site_links
from crosspipe.report import measured_prose as prose
from crosspipe.report.figures import Picture
from crosspipe.report.links import between_sites
from crosspipe.report.markup import Content, Markup, folded, table, tag
from crosspipe.report.measurements import Epoch, Measurements, Profile
from crosspipe.report.sections import figures
from crosspipe.report.wording import MISSING, duration, number, size

T = TypeVar("T", bound=msgspec.Struct)

QUANTITIES = {"ns/byte": "Gbit/s (1/beta)", "bytes/s": "Gbit/s of windows", "bytes": "memory"}
NOTHING_EARLIER = (
    "The store holds no earlier measurement of the same. profile.refresh=true makes another, and keeps those before."
)


def over_time(measurements: Measurements, drawn: Sequence[Picture]) -> Content:
    """The changes and the history of every profile that was measured before; `drawn` are the pictures of it."""
    parts: list[Content] = []
    for link_profile in measurements.links:
        parts.append(_compared("Links", link_profile, compare_links, _link_history))
    for block_profile in measurements.blocks:
        parts.append(_compared("Blocks", block_profile, compare_blocks, _block_history))
    if not any(parts):
        return tag("p", NOTHING_EARLIER, class_="missing")
    return [tag("p", prose.COMPARED), figures(drawn) if drawn else None, *parts]


def changes_in_words(measurements: Measurements) -> str | None:
    """How much changed beyond noise, in a sentence; None where nothing was measured before."""
    links = [change for p in measurements.links if p.earlier for change in _changes(p, compare_links)]
    blocks = [change for p in measurements.blocks if p.earlier for change in _changes(p, compare_blocks)]
    words = [
        f"{sum(change.beyond_noise for change in found)} of {len(found)} quantities of {what}"
        for what, found in (("links", links), ("blocks", blocks))
        if found
    ]
    return f"Since the last measurement {' and '.join(words)} changed beyond noise." if words else None


def _changes(profile: Profile[T], compare: Callable[[Sequence[T], T], tuple[Change, ...]]) -> tuple[Change, ...]:
    return compare([epoch.found for epoch in profile.earlier], profile.now.found)


def _compared(
    kind: str,
    profile: Profile[T],
    compare: Callable[[Sequence[T], T], tuple[Change, ...]],
    history: Callable[[Sequence[Epoch[T]]], Markup],
) -> Content:
    """One profile against those before; None where there are none."""
    damaged = [tag("p", f"Left out: {text}", class_="missing") for text in profile.unreadable]
    if not profile.earlier:
        return damaged or None
    changes = _changes(profile, compare)
    told = [change for change in changes if change.beyond_noise or None in (change.before, change.after)]
    others = [change for change in changes if change not in told]
    beyond = sum(change.beyond_noise for change in changes)
    count = len(profile.earlier)
    return [
        tag("h3", f"{kind}, {profile.now.short}"),
        tag(
            "p",
            f"Measured {when(profile.now)}; {count} measurement{'s' if count > 1 else ''} before, the last "
            f"{when(profile.earlier[-1])}. {beyond} of {len(changes)} quantities changed beyond noise.",
        ),
        folded(_change_table(told, f"{kind}: beyond noise, new or gone"), len(told), "changes") if told else None,
        tag("details", tag("summary", f"{len(others)} within noise"), _change_table(others, f"{kind}: within noise"))
        if others
        else None,
        history(profile.epochs),
        *damaged,
    ]


def when(epoch: Epoch[T]) -> str:
    """When a measurement was finished, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(epoch.finished_at_s))


def _change_table(changes: Sequence[Change], caption: str) -> Markup:
    head = ["what", "quantity", "before", "now", "change", "verdict"]
    lines = []
    for change in changes:
        quantity = QUANTITIES.get(change.unit) or ("latency" if " -> " in change.what else "duration")
        before, now = (_value(value, change.unit) for value in (change.before, change.after))
        lines.append([change.what.replace(" -> ", " → "), quantity, before, now, _moved(change), _verdict(change)])
    return table(head, lines, caption=caption, text=("quantity", "verdict"))


def _value(value: Spread | None, unit: str) -> str:
    """A value with its interval; time per byte as the bandwidth that it is."""
    if value is None:
        return MISSING
    if unit == "ns":
        written: Callable[[float], str] = duration
    elif unit == "bytes":
        return size(round(value.median))
    elif unit == "bytes/s":
        written = _gbit_of_rate
    else:
        value = msgspec.structs.replace(value, low=value.high, high=value.low)
        written = _gbit
    if value.low is None or value.high is None or value.low == value.high:
        return written(value.median)
    return f"{written(value.median)} [{written(value.low)}, {written(value.high)}]"


def _gbit(ns_per_byte: float) -> str:
    return number(8 / ns_per_byte) if ns_per_byte > 0 else "no byte cost"


def _gbit_of_rate(bytes_per_s: float) -> str:
    return number(bytes_per_s * 8 / 1e9)


def _moved(change: Change) -> str:
    ratio = change.ratio
    if ratio is not None and change.unit == "ns/byte":
        ratio = 1 / ratio if ratio else None
    return MISSING if ratio is None else f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def _verdict(change: Change) -> str:
    if change.before is None:
        return "new"
    if change.after is None:
        return "gone"
    return "beyond noise" if change.beyond_noise else "within noise"


def _link_history(epochs: Sequence[Epoch[LinkTable]]) -> Markup:
    """Latency and bandwidth from site to site in every measurement, newest first."""
    lines = [
        [
            when(epoch), epoch.short, between_sites(pair.source_site, pair.target_site), pair.transport,
            duration(pair.latency_ns), _gbit(1e9 / pair.bandwidth_bytes_per_s if pair.bandwidth_bytes_per_s else 0),
            MISSING if pair.streamed_bytes_per_s is None else _gbit_of_rate(pair.streamed_bytes_per_s),
            len(epoch.found.findings),
        ]
        for epoch in reversed(epochs)
        for pair in site_links(epoch.found)
    ]  # fmt: skip
    head = ["measured", "artifact", "sites", "transport", "latency", "Gbit/s", "largest window Gbit/s", "findings"]
    shown = table(head, lines, caption="History of the links between sites", text=head[1:4])
    return folded(shown, len(lines), "entries of the history")


def _block_history(epochs: Sequence[Epoch[BlockCosts]]) -> Markup:
    """F, D and W summed over all blocks in every measurement, newest first."""
    lines = [
        [
            when(epoch), epoch.short, *(number(total_ms(epoch.found, kind)) for kind in "FDW"),
            len(epoch.found.findings),
        ]
        for epoch in reversed(epochs)
    ]  # fmt: skip
    head = ["measured", "artifact", "F ms", "D ms", "W ms", "findings"]
    shown = table(head, lines, caption="History of the blocks, summed over all of them", text=head[1:2])
    return folded(shown, len(lines), "entries of the history")


def total_ms(costs: BlockCosts, kind: str) -> float:
    """F, D or W of one microbatch through all blocks, in ms."""
    return sum(cost.duration_ns(kind) for row in costs.blocks for cost in row) / 1e6
