"""A Gantt picture as self-contained SVG text: no library, no script, no style sheet.

Text and axes use the colour of the surrounding page, so it follows dark mode; each row is a stage, rows of different
sites stand apart, thin lines are messages between sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from crosspipe.schedule.drawing import layout
from crosspipe.schedule.drawing.layout import Bar
from crosspipe.schedule.timeline import Timeline

_LEFT, _RIGHT, _TITLE, _AXIS, _LEGEND = 70, 16, 26, 34, 24
_TOOLTIPS_UP_TO = 3000  # blocks in the whole picture; above, one path per colour keeps the file small
_FONT = 'font-family="system-ui, sans-serif"'


def gantt_svg(
    timelines: Mapping[str, Timeline], *, width_px: int = 1200, memory: bool = False, row_px: float | None = None
) -> str:
    """The timelines, one under the other on one time axis, as an SVG document.

    `timelines` maps a heading ("predicted", "measured") to each; every one begins at its own first event. `memory` adds
    under each stage a line of the activations it holds, all on one scale. `row_px` is the height of a stage's row
    (default: by the number of stages, 9 to 26). Microbatch numbers stand where they fit.
    """
    until = layout.longest_ns(timelines)
    stages = max((t.stages for t in timelines.values()), default=1)
    row = row_px if row_px is not None else max(9.0, min(26.0, 640 / stages))
    strip = round(row * 0.7) if memory else 0
    blocks = sum(len(order) for t in timelines.values() for order in t.blocks)
    peak = max([1, *(held for t in timelines.values() for held in t.peak_memory_bytes())])
    scale = (width_px - _LEFT - _RIGHT) / until
    parts, top = [_legend(timelines, memory, peak)], float(_LEGEND)
    for heading, timeline in timelines.items():
        panel, height = _panel(heading, timeline, scale, row, strip, peak, blocks <= _TOOLTIPS_UP_TO)
        parts.append(f'<g transform="translate({_LEFT},{top:.4g})">{panel}</g>')
        top += height
    parts.append(f'<g transform="translate({_LEFT},{top:.4g})">{_axis(until, scale)}</g>')
    size = f'viewBox="0 0 {width_px} {top + _AXIS:.5g}" width="{width_px}" height="{top + _AXIS:.5g}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT} font-size="12" fill="currentColor">'
    return f"{opening}{''.join(parts)}</svg>"


def _panel(
    heading: str, timeline: Timeline, scale: float, row: float, strip: int, peak: int, tooltips: bool
) -> tuple[str, float]:
    """One timeline and its height."""
    pitch = row + strip + (3 if strip else 0)
    tops = layout.row_places(timeline.sites, pitch, 8)
    bottom = tops[-1] + row + strip
    title = layout.title(heading, timeline)
    parts = [f'<text x="0" y="-8" font-weight="600">{escape(title)}</text>']
    bar_height = row - max(1.0, row * 0.12)
    drawn = layout.bars(timeline)
    parts += _rectangles(drawn, tops, scale, bar_height) if tooltips else _paths(drawn, tops, scale, bar_height)
    parts.append(_kind_edges(drawn, tops, scale, bar_height))
    parts += _numbers(drawn, tops, scale, bar_height)
    parts += _exchanges(timeline, tops, scale, bar_height)
    middle = bar_height / 2
    segments = "".join(
        f"M{x.start_ns * scale:.1f} {tops[x.source] + middle:.1f}L{x.end_ns * scale:.1f} {tops[x.target] + middle:.1f}"
        for x in layout.lines(timeline)
    )
    if segments:
        parts.append(
            f'<path d="{segments}" fill="none" stroke="currentColor" stroke-width="0.8" stroke-opacity="0.55"/>'
        )
    if strip:
        parts += [_memory(timeline, s, tops[s] + row, strip, peak, scale) for s in range(timeline.stages)]
    end = timeline.makespan_ns * scale
    parts.append(f'<path d="M{end:.1f} -2V{bottom:.1f}" stroke="currentColor" stroke-dasharray="3 3" fill="none"/>')
    parts += _stage_names(timeline, tops, row, bar_height)
    return f'<g transform="translate(0,{_TITLE})">{"".join(parts)}</g>', bottom + _TITLE + 6


def _stage_names(timeline: Timeline, tops: list[float], row: float, bar_height: float) -> list[str]:
    """Stage numbers at the left, thinned out where rows are low, and a name for every site."""
    every = 1 if row >= 9 else 4
    several = len(set(timeline.sites)) > 1
    parts = []
    for stage, (site, top) in enumerate(zip(timeline.sites, tops, strict=True)):
        if stage % every == 0:
            size = min(12.0, row)
            y = top + bar_height / 2 + size * 0.35
            parts.append(f'<text x="-6" y="{y:.1f}" text-anchor="end" font-size="{size:.3g}">{stage}</text>')
        if several and (stage == 0 or timeline.sites[stage - 1] != site):
            last = max(s for s in range(stage, timeline.stages) if set(timeline.sites[stage : s + 1]) == {site})
            middle = (top + tops[last] + row) / 2
            parts.append(
                f'<text transform="translate(-46,{middle:.1f}) rotate(-90)" text-anchor="middle" font-size="11">'
                f"site {site}</text>"
            )
    return parts


def _rectangles(drawn: list[Bar], tops: list[float], scale: float, height: float) -> list[str]:
    """A rectangle a block, with what it is as its title."""
    return [
        f'<rect x="{b.start_ns * scale:.2f}" y="{tops[b.stage]:.1f}" width="{(b.end_ns - b.start_ns) * scale:.2f}" '
        f'height="{height:.1f}" fill="{b.colour}"><title>{b.timed.block} on stage {b.stage}: '
        f"{layout.time_text(b.start_ns)} to {layout.time_text(b.end_ns)}</title></rect>"
        for b in drawn
    ] + [_edges(drawn, tops, scale, height)]


def _paths(drawn: list[Bar], tops: list[float], scale: float, height: float) -> list[str]:
    """A path a colour."""
    outlines: dict[str, list[str]] = {}
    for b in drawn:
        width = (b.end_ns - b.start_ns) * scale
        outline = f"M{b.start_ns * scale:.1f} {tops[b.stage]:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"
        outlines.setdefault(b.colour, []).append(outline)
    return [f'<path fill="{colour}" d="{"".join(found)}"/>' for colour, found in outlines.items()]


def _edges(drawn: list[Bar], tops: list[float], scale: float, height: float) -> str:
    """A hairline at the start of every block, so that neighbours of one colour can be told apart."""
    found = "".join(f"M{b.start_ns * scale:.2f} {tops[b.stage]:.1f}v{height:.1f}" for b in drawn)
    return f'<path d="{found}" stroke="#ffffff" stroke-width="0.7" fill="none"/>'


def _kind_edges(drawn: list[Bar], tops: list[float], scale: float, height: float) -> str:
    """The dark edges that tell D, W and B from F without colour."""
    edge = layout.EDGE * height
    lines = []
    for b in drawn:
        middles = {"upper": tops[b.stage] + edge / 2, "lower": tops[b.stage] + height - edge / 2}
        start, wide = b.start_ns * scale, (b.end_ns - b.start_ns) * scale
        lines += [f"M{start:.1f} {middles[name]:.1f}h{wide:.1f}" for name in layout.KIND_EDGES[b.timed.block.kind]]
    return f'<path d="{"".join(lines)}" stroke="#000000" stroke-width="{edge:.2g}" fill="none"/>' if lines else ""


def _numbers(drawn: list[Bar], tops: list[float], scale: float, height: float) -> list[str]:
    """Kind and microbatch on the blocks they fit into, grouped by ink."""
    size = min(12.0, height * 0.82)
    texts: dict[str, list[str]] = {}
    for b in drawn:
        label = layout.label(b, ((b.end_ns - b.start_ns) * scale / size - 0.3) / 0.62) if size >= 6 else ""
        if label:
            x, y = (b.start_ns + b.end_ns) / 2 * scale, tops[b.stage] + height / 2 + size * 0.35
            texts.setdefault(b.ink, []).append(f'<text x="{x:.1f}" y="{y:.1f}">{label}</text>')
    opening = f'text-anchor="middle" font-size="{size:.3g}" pointer-events="none"'
    return [f'<g fill="{ink}" {opening}>{"".join(found)}</g>' for ink, found in texts.items()]


def _exchanges(timeline: Timeline, tops: list[float], scale: float, height: float) -> list[str]:
    """What replicas send one another, along the lower edge of its stage's row."""
    return [
        f'<rect x="{start * scale:.2f}" y="{tops[stage] + 0.78 * height:.1f}" width="{(end - start) * scale:.2f}" '
        f'height="{0.22 * height:.1f}" fill="{layout.EXCHANGE_COLOUR}"><title>gather or reduction of replicas, '
        f"stage {stage}: {layout.time_text(start)} to {layout.time_text(end)}</title></rect>"
        for stage, start, end in layout.exchanges(timeline)
    ]


def _memory(timeline: Timeline, stage: int, top: float, height: float, peak: int, scale: float) -> str:
    """What a stage holds over time, as a filled step line."""
    if not timeline.memory:
        return ""
    path, zero = f"M0 {top + height:.1f}", timeline.start_ns
    for time, held in timeline.memory[stage]:
        path += f"H{(time - zero) * scale:.1f}V{top + height - held / peak * (height - 2):.1f}"
    path += f"H{timeline.makespan_ns * scale:.1f}V{top + height:.1f}z"
    return f'<path d="{path}" fill="currentColor" fill-opacity="0.18" stroke="currentColor" stroke-width="0.6"/>'


def _legend(timelines: Mapping[str, Timeline], memory: bool, peak: int) -> str:
    """Kinds that occur, what shades and lines mean."""
    kinds = sorted(
        {b.block.kind for t in timelines.values() for row in t.blocks for b in row}, key=list(layout.KIND_COLOURS).index
    )
    parts, x = [], float(_LEFT)
    for kind in kinds:
        text = f"{kind} {layout.KIND_NAMES[kind]}"
        parts.append(f'<rect x="{x:.1f}" y="5" width="12" height="12" fill="{layout.KIND_COLOURS[kind]}"/>')
        edges = "".join(f"M{x:.1f} {6 if edge == 'upper' else 16}h12" for edge in layout.KIND_EDGES[kind])
        parts.append(f'<path d="{edges}" stroke="#000000" stroke-width="2" fill="none"/>' if edges else "")
        parts.append(f'<text x="{x + 17:.1f}" y="15">{text}</text>')
        x += 30 + 6.6 * len(text)
    notes = []
    if any(t.chunks > 1 for t in timelines.values()):
        notes.append("lighter: later chunk")
    if any(layout.lines(t) for t in timelines.values()):
        notes.append("lines: messages between sites")
    if any(layout.exchanges(t) for t in timelines.values()):
        notes.append("thin bars: gathers and reductions of replicas")
    if memory:
        notes.append(f"grey: activations, full height = {layout.bytes_text(peak)}")
    parts.append(f'<text x="{x:.1f}" y="15" fill-opacity="0.75">{", ".join(notes)}</text>')
    return "".join(parts)


def _axis(until: int, scale: float) -> str:
    """Times since the first event."""
    size, name = layout.time_unit(until)
    parts = [f'<path d="M0 0H{until * scale:.1f}" stroke="currentColor" fill="none"/>']
    for tick in layout.ticks(until):
        x = tick * scale
        parts.append(f'<path d="M{x:.1f} 0v4" stroke="currentColor"/>')
        parts.append(f'<text x="{x:.1f}" y="16" text-anchor="middle" font-size="11">{tick / size:.6g}</text>')
    parts.append(f'<text x="{until * scale:.1f}" y="30" text-anchor="end" font-size="11">time in {name}</text>')
    return "".join(parts)
