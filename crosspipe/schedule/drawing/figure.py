"""The Gantt picture as a matplotlib figure, for PNG and PDF: what `svg` draws, without pyplot's global state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crosspipe.schedule.drawing import layout
from crosspipe.schedule.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = 0.86  # of a row


def draw_timeline(
    timelines: Timeline | Mapping[str, Timeline], *, width_in: float = 12.0, memory: bool = False
) -> Figure:
    """One or several timelines under one another on one time axis, as a figure `width_in` inches wide.

    A mapping gives each its heading; every timeline begins at its own first event. `memory` adds a line of the
    activations each stage holds, all on one scale.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    named = {"": timelines} if isinstance(timelines, Timeline) else dict(timelines)
    until = layout.longest_ns(named)
    row_in = max(0.13, min(0.36, 7.0 / max(t.stages for t in named.values()))) * (1.6 if memory else 1.0)
    heights = [t.stages * row_in + 0.45 for t in named.values()]
    figure = Figure(figsize=(width_in, sum(heights) + 0.75), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(named), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    size, unit = layout.time_unit(until)
    peak = max([1, *(held for t in named.values() for held in t.peak_memory_bytes())])
    points_per_ns = (width_in - 0.9) * 72 / until
    for axes, (heading, timeline) in zip(panels, named.items(), strict=True):
        _panel(axes, heading, timeline, points_per_ns, row_in, peak if memory else None)
    panels[-1].set_xlim(0, until * 1.002)
    panels[-1].set_xticks(layout.ticks(until), [f"{tick / size:.6g}" for tick in layout.ticks(until)])
    panels[-1].set_xlabel(f"time in {unit}")
    _legend(figure, named, peak if memory else None)
    return figure


def _panel(axes: Any, heading: str, timeline: Timeline, points_per_ns: float, row_in: float, peak: int | None) -> None:
    """Draws one timeline on `axes`; rows are 1 high and count downwards."""
    from matplotlib.collections import LineCollection, PolyCollection

    tops = layout.row_places(timeline.sites, 1.0, 0.35)
    share = _BAR if peak is None else _BAR * 0.62
    by_colour: dict[str, list[list[tuple[float, float]]]] = {}
    edges: list[list[tuple[float, float]]] = []  # dark edges that tell kinds apart without colour
    text_size = min(8.0, row_in * 72 * share * 0.72)
    for bar in layout.bars(timeline):
        top, bottom = tops[bar.stage], tops[bar.stage] + share
        corners = [(bar.start_ns, top), (bar.end_ns, top), (bar.end_ns, bottom), (bar.start_ns, bottom)]
        by_colour.setdefault(bar.colour, []).append([(float(x), y) for x, y in corners])
        for edge in layout.KIND_EDGES[bar.timed.block.kind]:
            y = top + layout.EDGE * share if edge == "upper" else bottom
            edges.append([(bar.start_ns, y - layout.EDGE * share), (bar.end_ns, y - layout.EDGE * share),
                          (bar.end_ns, y), (bar.start_ns, y)])  # fmt: skip
        room = ((bar.end_ns - bar.start_ns) * points_per_ns / text_size - 0.3) / 0.62
        label = layout.label(bar, room) if text_size >= 4.5 else ""
        if label:
            middle = (bar.start_ns + bar.end_ns) / 2
            axes.text(
                middle, (top + bottom) / 2, label, ha="center", va="center_baseline", fontsize=text_size, color=bar.ink
            )
    narrow = sum(len(found) for found in by_colour.values()) > 3000
    for colour, found in by_colour.items():
        axes.add_collection(
            PolyCollection(found, facecolors=colour, edgecolors="none" if narrow else "white", linewidths=0.4)
        )
    axes.add_collection(PolyCollection(edges, facecolors="black", edgecolors="none"))
    for stage, start, end in layout.exchanges(timeline):
        low = tops[stage] + share
        axes.fill_between([start, end], low - share * 0.22, low, color=layout.EXCHANGE_COLOUR, linewidth=0)
    messages = [
        [(x.start_ns, tops[x.source] + share / 2), (x.end_ns, tops[x.target] + share / 2)]
        for x in layout.lines(timeline)
    ]
    axes.add_collection(LineCollection(messages, colors="black", linewidths=0.5, alpha=0.55))
    if peak is not None and timeline.memory:
        for stage, steps in enumerate(timeline.memory):
            floor = tops[stage] + 0.97
            times = [0, *(time - timeline.start_ns for time, _ in steps), timeline.makespan_ns]
            levels = [0, *(held for _, held in steps)]
            levels.append(levels[-1])
            heights = [floor - level / peak * (0.97 - share) for level in levels]
            axes.fill_between(times, floor, heights, step="post", color="0.5", alpha=0.35, linewidth=0)
    axes.axvline(timeline.makespan_ns, color="black", linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set_ylim(tops[-1] + 1.0, -0.1)
    every = 1 if row_in >= 0.12 else 4
    shown = range(0, timeline.stages, every)
    axes.set_yticks([tops[s] + share / 2 for s in shown], [str(s) for s in shown], fontsize=min(9.0, row_in * 60))
    axes.set_ylabel("stage" if len(set(timeline.sites)) == 1 else "stage (sites apart)")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = layout.title(heading, timeline)
    axes.set_title(title, loc="left", fontsize=10)


def _edge_words(kind: str) -> str:
    edges = layout.KIND_EDGES[kind]
    return f" (dark {' and '.join(edges)} edge)" if edges else ""


def _legend(figure: Any, timelines: Mapping[str, Timeline], peak: int | None) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {b.block.kind for t in timelines.values() for row in t.blocks for b in row}
    entries: list[Any] = [
        Patch(facecolor=colour, label=f"{kind} {layout.KIND_NAMES[kind]}{_edge_words(kind)}")
        for kind, colour in layout.KIND_COLOURS.items()
        if kind in kinds
    ]
    if any(t.chunks > 1 for t in timelines.values()):
        entries.append(Patch(facecolor="none", label="lighter: later chunk"))
    if any(layout.lines(t) for t in timelines.values()):
        entries.append(Line2D([], [], color="black", linewidth=0.8, alpha=0.55, label="message between sites"))
    if any(layout.exchanges(t) for t in timelines.values()):
        entries.append(Patch(facecolor=layout.EXCHANGE_COLOUR, label="gather, reduction of replicas"))
    if peak is not None:
        entries.append(Patch(facecolor="0.5", alpha=0.35, label=f"activations, full height {layout.bytes_text(peak)}"))
    if entries:
        columns = max(1, min(len(entries), int(figure.get_figwidth() / 2.6)))
        figure.legend(handles=entries, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)
