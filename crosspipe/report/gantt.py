"""The Gantt pictures of the page: each schedule as predicted, and below it on the same scale as it ran.

Shown is the measured iteration whose makespan is the median one, not the best. Pictures are the heaviest part of a
page, so all of them together keep within a budget; what is left out says so and names the command that draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.markup import Content, Markup, tag
from crosspipe.report.svg import embedded
from crosspipe.report.wording import number
from crosspipe.schedule import Timeline, simulate

PICTURE_BUDGET_BYTES = 6 * 2**20


def gantt_section(artifacts: Mapping[str, PointArtifacts], rows: Sequence[dict[str, Any]]) -> Content:
    """A collapsible group per setting and delay with the pictures of its schedules; the last group is open.

    `rows` are the tidy results in the order to show.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if artifacts[row["point"]].schedule is not None and artifacts[row["point"]].problem is not None:
            groups.setdefault((row["setting"], row["delay"]), []).append(row)
    if not groups:
        return tag("p", "No schedule has been solved yet, so there is nothing to draw.", class_="missing")
    parts, used = [], 0
    for (setting, delay), own in groups.items():
        pictures = []
        for row in own:
            picture, size = _picture(
                artifacts[row["point"]], row, len(parts) * 1000 + len(pictures), PICTURE_BUDGET_BYTES - used
            )
            pictures.append(picture)
            used += size
        name = ", ".join(filter(None, (setting, f"delay {delay}")))
        last = len(parts) + 1 == len(groups)
        parts.append(
            tag("details", tag("summary", f"{name}: ", ", ".join(r["schedule"] for r in own)), *pictures, open=last)
        )
    return parts


def median_timeline(timelines: Sequence[Timeline]) -> Timeline | None:
    """The timeline with the median makespan (the lower one of two); None without timelines."""
    ordered = sorted(timelines, key=lambda t: t.makespan_ns)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _picture(artifacts: PointArtifacts, row: dict[str, Any], index: int, budget_bytes: int) -> tuple[Markup, int]:
    """The pictures of one point and their size in bytes; a sentence in their place where the budget is used up."""
    title = tag("h3", f"{row['schedule']}, delay {row['delay']}")
    if artifacts.problem is None or artifacts.schedule is None:
        return tag("div", title, tag("p", "no schedule", class_="missing"), class_="gantt"), 0
    if budget_bytes <= 0:
        where = f"left out to keep this page small: `crosspipe show` draws solve/{row['solve_key'][:12]}…/schedule.json"
        return tag("div", title, tag("p", where, class_="missing"), class_="gantt"), 0
    predicted = simulate(artifacts.problem, artifacts.schedule)
    measured = median_timeline(artifacts.timelines())
    until_ns = max(t.makespan_ns for t in (predicted, measured) if t is not None)
    content = [title]
    for timeline, what in ((predicted, "predicted"), (measured, "measured, the iteration of median makespan")):
        if timeline is None:
            content.append(tag("p", "not measured", class_="missing"))
            continue
        label = f"{what} ({timeline.origin}): makespan {number(timeline.makespan_ns / 1e6)} ms"
        name = f"Gantt picture of {row['schedule']}, delay {row['delay']}, {label}"
        picture = embedded(gantt_svg(timeline, until_ns=until_ns), f"gantt{index}{what[0]}", name)
        content += [tag("p", label), picture]
    return tag("div", content, class_="gantt"), sum(map(len, content))


def gantt_svg(timeline: Timeline, *, until_ns: int) -> str:
    """A plain picture: a row a stage, a path a kind."""
    colours = {"F": "#56B4E9", "D": "#E69F00", "W": "#009E73", "B": "#D55E00"}
    paths: dict[str, str] = {}
    for stage, row in enumerate(timeline.blocks):
        for block, start, end in row:
            x, width = 1000 * start / until_ns, 1000 * (end - start) / until_ns
            paths[block.kind] = paths.get(block.kind, "") + f"M{x:.1f} {stage * 22}h{width:.1f}v18h-{width:.1f}z"
    drawn = "".join(f'<path fill="{colours[kind]}" d="{path}"/>' for kind, path in paths.items())
    return f'<svg viewBox="0 0 1000 {22 * timeline.stages}">{drawn}</svg>'
