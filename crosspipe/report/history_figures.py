"""Figures of measurements over time, and of the nodes of one: who is slow, and what has become slower."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

import msgspec

from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.problem.nodes import SLOW, NodeProfiles, against_peers
from crosspipe.problem.sites import SiteLink, site_links
from crosspipe.report import measured_prose as prose
from crosspipe.report.figures import COLOURS, INK, Picture, paper_style, series, to_svg
from crosspipe.report.measurements import Epoch, Measurements
from crosspipe.report.over_time import total_ms
from crosspipe.report.rate_figures import called

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T", bound=msgspec.Struct)

MOST_NODES = 40


def node_pictures(measurements: Measurements) -> list[Picture]:
    """A picture of the nodes of every block profile that has several."""
    drawn = []
    for index, (reference, nodes) in enumerate(measurements.nodes.items()):
        if len(nodes.by_node) > 1:
            title = f"Nodes against their peers, artifact {reference[:19]}"
            drawn.append(Picture(f"nodes{index or ''}", title, prose.NODES_CAPTION, to_svg(node_figure(nodes))))
    return drawn


def history_pictures(measurements: Measurements) -> list[Picture]:
    """A picture of every profile that was measured before."""
    drawn = []
    for index, links in enumerate(profile for profile in measurements.links if profile.earlier):
        figure = link_history(links.epochs)
        name = f"Links over time, {links.now.short}"
        drawn.append(Picture(f"link-history{index or ''}", name, prose.LINK_HISTORY_CAPTION, to_svg(figure)))
    for index, blocks in enumerate(profile for profile in measurements.blocks if profile.earlier):
        figure = block_history(blocks.epochs)
        name = f"Blocks over time, {blocks.now.short}"
        drawn.append(Picture(f"block-history{index or ''}", name, prose.BLOCK_HISTORY_CAPTION, to_svg(figure)))
    return drawn


def node_figure(nodes: NodeProfiles) -> Figure:
    """A box a node over the ratios of its blocks to those of its peers, the slowest nodes where there are very many."""
    from matplotlib.figure import Figure

    ratios = {node: sorted(found.values()) for node, found in against_peers(nodes.by_node).items() if found}
    if len(ratios) > MOST_NODES:
        ratios = dict(sorted(ratios.items(), key=lambda item: -median(item[1]))[:MOST_NODES])
    with paper_style():
        figure = Figure(figsize=(3.4, 0.8 + 0.18 * len(ratios)), layout="constrained")
        axes = figure.add_subplot()
        for place, values in enumerate(ratios.values()):
            colour = COLOURS[1] if median(values) >= SLOW else COLOURS[0]
            axes.plot([values[0], values[-1]], [place, place], color=colour, linewidth=0.9)
            axes.plot(values, [place] * len(values), "|", color=colour, markersize=7)
            axes.plot(median(values), place, "o", color=INK, markersize=4)
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.axvline(SLOW, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(ratios)), list(ratios))
        axes.set_ylim(len(ratios) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("time of a block over its peers'")
    return figure


def link_history(epochs: Sequence[Epoch[LinkTable]]) -> Figure:
    """Alpha and bandwidth of every pair of sites in every measurement over those of its first, with the range over its
    pairs of ranks."""
    from matplotlib.figure import Figure

    found: dict[str, list[tuple[int, SiteLink]]] = {}
    for place, epoch in enumerate(epochs):
        for pair in site_links(epoch.found):
            found.setdefault(called((pair.source_site, pair.target_site)), []).append((place, pair))
    looks = series(list(found))
    with paper_style():
        figure = Figure(figsize=(3.4, 3.6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for index, (ends, own) in enumerate(found.items()):
            bars = {"color": looks[ends].colour, "marker": looks[ends].marker, "ls": looks[ends].dashes, "mfc": "none"}
            beside = 0.06 * (index - (len(found) - 1) / 2)  # so that bars do not hide one another
            for axes, points in (
                (upper, [(p, x.latency_ns / 1e3, *(y / 1e3 for y in x.latency_range_ns)) for p, x in own]),
                (lower, [(p, *rates) for p, x in own if (rates := _gbit(x)) is not None]),
            ):
                if points:
                    first = points[0][1] or 1.0  # a latency of 0 stays 0
                    places, *columns = zip(*points, strict=True)
                    values, lows, highs = ([value / first for value in column] for column in columns)
                    below = [value - low for value, low in zip(values, lows, strict=True)]
                    above = [high - value for value, high in zip(values, highs, strict=True)]
                    moved = [place + beside for place in places]
                    axes.errorbar(moved, values, yerr=(below, above), capsize=2, label=ends, **bars)
        upper.set_ylabel("latency over\nthe first")
        lower.set_ylabel("bandwidth over\nthe first")
        for axes in (upper, lower):
            axes.axhline(1, color=INK, linewidth=0.8)
            axes.margins(y=0.2)
        _dates_below(lower, epochs)
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _gbit(pair: SiteLink) -> tuple[float, float, float] | None:
    """Bandwidth of a pair of sites, least and most of its pairs of ranks, in Gbit/s; None where bytes cost nothing."""
    if pair.bandwidth_bytes_per_s is None or pair.bandwidth_range_bytes_per_s is None:
        return None
    value, (low, high) = pair.bandwidth_bytes_per_s, pair.bandwidth_range_bytes_per_s
    return value * 8 / 1e9, low * 8 / 1e9, max(high, value) * 8 / 1e9


def block_history(epochs: Sequence[Epoch[BlockCosts]]) -> Figure:
    """F, D and W through all blocks in every measurement."""
    from matplotlib.figure import Figure

    looks = series(["F", "D", "W"])
    with paper_style():
        figure = Figure(figsize=(3.4, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for kind, look in looks.items():
            times = [total_ms(epoch.found, kind) for epoch in epochs]
            axes.plot(times, marker=look.marker, color=look.colour, ls=look.dashes, mfc="none", label=kind)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("one microbatch (ms)")
        _dates_below(axes, epochs)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _dates_below(axes: Axes, epochs: Sequence[Epoch[T]]) -> None:
    """The days of the measurements below the axis; of many, some."""
    every = -(-len(epochs) // 6)
    places = range(len(epochs) - 1, -1, -every)
    labels = [time.strftime("%d %b %Y\n%H:%M", time.gmtime(epochs[place].finished_at_s)) for place in places]
    axes.set_xticks(list(places), labels)
    axes.set_xlim(-0.4, len(epochs) - 0.6)
    axes.set_xlabel("measured (UTC)")
