"""The interactive Gantt pictures of the page: each schedule as predicted, and on the same scale as it ran.

This module only packs timelines into small JSON beside the place of each picture; `gantt.js`, which the page carries,
draws them. Shown is the measured iteration whose makespan is the median one, not the best. Timelines are the heaviest
part of a page, so all of them together keep within a budget; what is left out names the command that draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from crosspipe.errors import CrosspipeError
from crosspipe.report import prose
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.markup import Content, Markup, tag
from crosspipe.report.wording import number
from crosspipe.schedule import Timeline, simulate
from crosspipe.schedule.drawing import layout

DATA_BUDGET_BYTES = 12 * 2**20
KINDS = "FDWB"  # as in gantt.js
STEPS = 10**6  # a timeline's times are rounded to at most one part of so many
MEMORY_STEPS = 1000  # and its memory to so many parts of the largest


def gantt_section(artifacts: Mapping[str, PointArtifacts], rows: Sequence[dict[str, Any]]) -> Content:
    """A collapsible group per setting and delay with the pictures of its schedules; the last group is open.

    `rows` are the tidy results in the order to show.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if artifacts[row["point"]].schedule is not None:
            groups.setdefault(", ".join(filter(None, (row["setting"], f"delay {row['delay']}"))), []).append(row)
    if not groups:
        return tag("p", "No schedule has been solved yet, so there is nothing to draw.", class_="missing")
    parts: list[Content] = [tag("p", prose.GANTT), tag("noscript", tag("p", prose.NO_SCRIPT, class_="missing"))]
    used = 0
    for index, (name, own) in enumerate(groups.items(), start=1):
        pictures = []
        for row in own:
            picture, size = _picture(artifacts[row["point"]], row, DATA_BUDGET_BYTES - used)
            pictures.append(picture)
            used += size
        heading = tag("summary", f"{name}: ", ", ".join(row["schedule"] for row in own))
        parts.append(tag("details", heading, *pictures, open=index == len(groups)))
    return parts


def median_timeline(timelines: Sequence[Timeline]) -> Timeline | None:
    """The timeline with the median makespan (the lower one of two); None without timelines."""
    ordered = sorted(timelines, key=lambda t: t.makespan_ns)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def packed(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """Timelines of one problem, by name, as `gantt.js` reads them: flat lists of small whole numbers.

    Times are ticks of `unit_ns` since the first event, a row is [kind, chunk, microbatch, piece (-1: whole), wait since
    the block before, duration] per block, memory [time since the step before, units held] per step, and a message
    [source, target, ready, arrival] for each that crosses sites.
    """
    first = next(iter(timelines.values()))
    longest = max(t.makespan_ns for t in timelines.values())
    unit = max(1, 10 ** (len(str(longest)) - len(str(STEPS)) + 1))
    peak = max([1, *(held for t in timelines.values() for held in t.peak_memory_bytes())])
    memory_unit = -(-peak // MEMORY_STEPS)
    colours = [layout.shade(kind, chunk, first.chunks) for kind in KINDS for chunk in range(first.chunks)]
    return {
        "unit_ns": unit,
        "memory_unit_bytes": memory_unit,
        "memory_peak": round(peak / memory_unit) if any(t.memory for t in timelines.values()) else 0,
        "sites": first.sites,
        "chunks": first.chunks,
        "colours": [[colour, layout.ink_on(colour)] for colour in colours],
        "timelines": [
            {"name": name, "origin": t.origin, "makespan": round(t.makespan_ns / unit), **_events(t, unit, memory_unit)}
            for name, t in timelines.items()
        ],
    }


def _events(timeline: Timeline, unit: int, memory_unit: int) -> dict[str, Any]:
    zero = timeline.start_ns
    rows, memory = [], []
    for blocks in timeline.blocks:
        row, now = [], 0
        for (kind, chunk, microbatch, piece, pieces), start_ns, end_ns in blocks:
            start, end = round((start_ns - zero) / unit), round((end_ns - zero) / unit)
            row += [KINDS.index(kind), chunk, microbatch, piece if pieces > 1 else -1, start - now, end - start]
            now = end
        rows.append(row)
    for steps in timeline.memory:
        row, now = [], 0
        for time_ns, held in steps:
            time = round((time_ns - zero) / unit)
            row += [time - now, round(held / memory_unit)]
            now = time
        memory.append(row)
    messages = [
        value
        for x in layout.lines(timeline)
        for value in (x.source, x.target, round(x.start_ns / unit), round(x.end_ns / unit))
    ]
    return {"rows": rows, "memory": memory, "messages": messages}


def _picture(artifacts: PointArtifacts, row: dict[str, Any], budget_bytes: int) -> tuple[Markup, int]:
    """The picture of one point and the size of its data in bytes; a sentence in its place where there is none."""

    def element(*content: Content, label: str | None = None) -> Markup:
        heading = tag("h3", f"{row['schedule']}, delay {row['delay']}")
        return tag("div", heading, *content, class_="gantt", data_label=label)

    def instead(text: str) -> tuple[Markup, int]:
        return element(tag("p", text, class_="missing")), 0

    if artifacts.problem is None or artifacts.schedule is None:
        return instead("not solved")
    if budget_bytes <= 0:
        return instead(f"left out to keep this page small; crosspipe show draws solve/{row['solve_key']}/schedule.json")
    try:
        predicted = simulate(artifacts.problem, artifacts.schedule)
        measured = median_timeline(artifacts.timelines())
    except CrosspipeError as error:
        return instead(f"cannot be drawn: {error}")
    timelines = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    makespans = [f"{name} ({t.origin}) {number(t.makespan_ns / 1e6)} ms" for name, t in timelines.items()]
    label = f"Gantt picture of {row['schedule']}, delay {row['delay']}: makespan {', '.join(makespans)}"
    data = msgspec.json.encode(packed(timelines)).decode().replace("<", "\\u003c")  # no end tag within a script
    shown = tag("script", Markup(data), type="application/json")
    missing = None if measured is not None else tag("p", "not measured", class_="missing")
    return element(shown, missing, label=label), len(data)
