"""The Gantt picture in a terminal: a line a stage, a colour a kind; still readable without colours."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from crosspipe.schedule.drawing import layout
from crosspipe.schedule.timeline import Timeline


def draw_terminal(timeline: Timeline, width: int = 100) -> RenderableType:
    """A timeline `width` columns wide, for `rich`'s console.

    A column shows the block that fills most of it, or nothing where the stage mostly idles; a block's kind and
    microbatch stand at its first column where there is room.
    """
    margin = len(str(timeline.stages - 1)) + 7
    columns = max(10, width - margin)
    span = max(1, timeline.makespan_ns)
    lines = [Text(f"{timeline.origin}: {layout.time_text(timeline.makespan_ns)}", style="bold")]
    rows: list[list[layout.Bar]] = [[] for _ in range(timeline.stages)]
    for bar in layout.bars(timeline):
        rows[bar.stage].append(bar)
    for stage, row in enumerate(rows):
        if stage and timeline.sites[stage] != timeline.sites[stage - 1]:
            lines.append(Text(" " * margin + "┈" * columns, style="dim"))
        line = Text(f"stage {stage:>{margin - 7}} ")
        _paint(line, _columns(row, columns, span), row)
        lines.append(line)
    lines.append(_axis(margin, columns, timeline.makespan_ns))
    lines.append(_legend(margin, rows))
    return Group(*lines)


def _columns(row: list[layout.Bar], columns: int, span: int) -> list[int | None]:
    """Per column the index of the block that covers most of it; None where idling does."""
    covered: list[dict[int | None, float]] = [{} for _ in range(columns)]
    for i, bar in enumerate(row):
        first, last = bar.start_ns * columns / span, bar.end_ns * columns / span
        for column in range(int(first), min(columns, int(last) + 1)):
            share = min(last, column + 1) - max(first, column)
            if share > 0:
                covered[column][i] = share
    for shares in covered:
        shares[None] = 1 - sum(shares.values())
    return [max(shares, key=lambda who: shares[who]) for shares in covered]


def _paint(line: Text, owners: list[int | None], row: list[layout.Bar]) -> None:
    """Appends one run of columns after the other."""
    start = 0
    for column in range(1, len(owners) + 1):
        if column < len(owners) and owners[column] == owners[start]:
            continue
        owner, length = owners[start], column - start
        if owner is None:
            line.append(" " * length)
        else:
            bar = row[owner]
            label = f"{bar.timed.block.kind}{bar.timed.block.microbatch}"
            label = label if len(label) <= length else bar.timed.block.kind
            line.append(label.ljust(length), style=f"{bar.ink} on {bar.colour}")
        start = column


def _axis(margin: int, columns: int, span: int) -> Text:
    """Round times under the columns they fall into."""
    size, name = layout.time_unit(span)
    text = [" "] * columns
    for tick in layout.ticks(span, about=max(1, columns // 10)):
        at, label = tick * columns // max(1, span), f"╵{tick / size:.6g} {name}"
        if at + len(label) <= columns:
            text[at : at + len(label)] = label
    return Text(" " * margin + "".join(text), style="dim")


def _legend(margin: int, rows: list[list[layout.Bar]]) -> Text:
    line = Text(" " * margin)
    kinds = {bar.timed.block.kind for row in rows for bar in row}
    for kind, colour in layout.KIND_COLOURS.items():
        if kind in kinds:
            line.append(f" {kind} ", style=f"{layout.ink_on(colour)} on {colour}")
            line.append(f" {layout.KIND_NAMES[kind]}  ")
    return line
