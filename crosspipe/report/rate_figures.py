"""Figures of the measured links by message size: how well the line of alpha and beta fits, and what windows carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from crosspipe.problem import Link, LinkTable
from crosspipe.problem.sites import site_links
from crosspipe.report.figures import INK, paper_style, series
from crosspipe.report.wording import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_PATTERNS = {"one_way": "-", "both_ways": "--"}


def fit_figure(links: LinkTable) -> Figure | None:
    """Medians by message size of every pair of sites with its line, and below every link's misfit in percent; over the
    run's transport. None without medians."""
    from matplotlib.figure import Figure

    groups = {pair: own for pair, own in _by_sites(links).items() if any(x.sizes_bytes for x in own)}
    if not groups:
        return None
    looks = series([called(pair) for pair in groups])
    with paper_style():
        figure = Figure(figsize=(3.4, 3.6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for pair in site_links(links):
            ends = (pair.source_site, pair.target_site)
            if ends not in groups:
                continue
            own, look = groups[ends], looks[called(ends)]
            sizes = sorted({s for link in own for s in link.sizes_bytes})
            at = {s: [dict(zip(x.sizes_bytes, x.medians_ns, strict=True)).get(s) for x in own] for s in sizes}
            medians = [median(value for value in at[s] if value is not None) / 1e6 for s in sizes]
            upper.plot(sizes, medians, look.marker, color=look.colour, mfc="none", label=called(ends))
            beta = 0 if pair.bandwidth_bytes_per_s is None else 1e9 / pair.bandwidth_bytes_per_s
            along = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 60) for i in range(61)]
            line = [(pair.latency_ns + beta * s) / 1e6 for s in along]
            upper.plot(along, line, color=look.colour, linestyle=look.dashes, linewidth=0.9)
            for link in own:
                off = [100 * residual for residual in link.residuals]
                lower.plot(link.sizes_bytes, off, look.marker, color=look.colour, mfc="none", markersize=3, alpha=0.7)
        readable(upper.yaxis)
        upper.set_ylabel("one way (ms)")
        lower.axhline(0, color=INK, linewidth=0.8)
        lower.set_ylabel("line off by (%)")
        _sizes_below(lower)
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def window_figure(links: LinkTable) -> Figure | None:
    """Gbit/s of windows by message size, one way and both ways, a look per pair of sites, and of all pairs of ranks
    together; over the run's transport. None where none were stated."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    groups = {pair: own for pair, own in _by_sites(links).items() if any(x.streams for x in own)}
    if not groups:
        return None
    looks = series([called(pair) for pair in groups])
    with paper_style():
        figure = Figure(figsize=(3.4, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for pair, own in groups.items():
            look = looks[called(pair)]
            for pattern, dashes in _PATTERNS.items():
                rates = _rates(own, pattern)
                filled = look.colour if pattern == "one_way" else "none"
                if rates:
                    axes.plot(*zip(*rates, strict=True), look.marker, ls=dashes, color=look.colour, mfc=filled)
        handles = [Line2D([], [], color=x.colour, marker=x.marker, ls="none", label=name) for name, x in looks.items()]
        handles += [Line2D([], [], color=INK, ls=ls, label=n.replace("_", " ")) for n, ls in _PATTERNS.items()]
        own_contention = [seen for seen in links.contention if seen.transport == links.run_transport]
        for seen in own_contention:
            look = looks[called((seen.source_site, seen.target_site))]
            rate = sum(x.median for x in seen.together) / len(seen.pairs) * 8 / 1e9
            axes.plot(seen.size_bytes, rate, "*", color=look.colour, markersize=9)
        if own_contention:
            handles.append(Line2D([], [], marker="*", ls="none", color=INK, label="together, a pair"))
        readable(axes.yaxis)
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom=0)
        axes.set_ylabel("Gbit/s")
        _sizes_below(axes, sorted({stream.size_bytes for own in groups.values() for x in own for stream in x.streams}))
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _rates(own: list[Link], pattern: str) -> list[tuple[int, float]]:
    """(message size, median Gbit/s over the links) of one kind of window."""
    found: dict[int, list[float]] = defaultdict(list)
    for link in own:
        for stream in link.streams:
            if stream.pattern == pattern:
                found[stream.size_bytes].append(stream.bytes_per_s.median * 8 / 1e9)
    return [(size_bytes, median(found[size_bytes])) for size_bytes in sorted(found)]


def _by_sites(links: LinkTable) -> dict[tuple[int, int], list[Link]]:
    """The links over the run's transport by their sites."""
    groups: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for link in links.links:
        if link.transport == links.run_transport:
            groups[links.site_of_rank[link.source], links.site_of_rank[link.target]].append(link)
    return dict(sorted(groups.items()))


def called(pair: tuple[int, int]) -> str:
    """A directed pair of sites, short enough for a legend."""
    return f"inside site {pair[0]}" if pair[0] == pair[1] else f"site {pair[0]} → {pair[1]}"


def _sizes_below(axes: Axes, sizes: Sequence[int] = ()) -> None:
    """Message sizes on a logarithmic x axis, in binary units: `sizes`, else every 32nd."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log", base=4)
    axes.xaxis.set_major_locator(FixedLocator(sizes) if sizes else LogLocator(base=32))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("message")


def _short(size_bytes: float) -> str:
    """A size without the zeros of a power of two."""
    value, unit = size(round(size_bytes)).split()
    return f"{float(value):g} {unit}"


def readable(axis: Axis) -> None:
    """Plain numbers on `axis`, logarithmic where its values span more than a factor of four: 1, 2 and 5 of a decade, or
    the decades where there are many. To be called when all is drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    lines = [line.get_data()[axis.axis_name == "y"] for line in axis.axes.lines]
    values = [value for line in lines for value in line if value > 0]
    low, high = min(values, default=1), max(values, default=1)
    if high > 4 * low:
        (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,), numticks=12))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
