"""The Gantt pictures of the page: each schedule as predicted, and below it on the same scale as it ran.

Shown is the measured iteration whose makespan is the median one, not the best. Pictures are the heaviest part of a
page, so all of them together keep within a budget; what is left out says so and names the command that draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosspipe.errors import CrosspipeError
from crosspipe.report import prose
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.markup import Content, Markup, tag
from crosspipe.report.svg import embedded
from crosspipe.report.wording import number
from crosspipe.schedule import Timeline, simulate
from crosspipe.schedule.drawing import gantt_svg

PICTURE_BUDGET_BYTES = 6 * 2**20


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
    parts: list[Content] = [tag("p", prose.GANTT)]
    index = used = 0
    for name, own in groups.items():
        pictures = []
        for row in own:
            picture, size = _picture(artifacts[row["point"]], row, index, PICTURE_BUDGET_BYTES - used)
            pictures.append(picture)
            index, used = index + 1, used + size
        heading = tag("summary", f"{name}: ", ", ".join(row["schedule"] for row in own))
        parts.append(tag("details", heading, *pictures, open=len(parts) == len(groups)))
    return parts


def median_timeline(timelines: Sequence[Timeline]) -> Timeline | None:
    """The timeline with the median makespan (the lower one of two); None without timelines."""
    ordered = sorted(timelines, key=lambda t: t.makespan_ns)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _picture(artifacts: PointArtifacts, row: dict[str, Any], index: int, budget_bytes: int) -> tuple[Markup, int]:
    """The picture of one point and its size in bytes; a sentence in its place where there is none."""

    def element(*content: Content) -> Markup:
        return tag("div", tag("h3", f"{row['schedule']}, delay {row['delay']}"), *content, class_="gantt")

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
    title = f"Gantt picture of {row['schedule']}, delay {row['delay']}: makespan {', '.join(makespans)}"
    picture = embedded(gantt_svg(timelines, memory=True), f"gantt{index}", title)
    return element(picture, None if measured is not None else tag("p", "not measured", class_="missing")), len(picture)
