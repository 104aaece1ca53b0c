"""The summary table: schedule × delay with predicted, measured, error, the best static schedule, gap and peak memory.

Made once from the tidy results and shown three ways: in the terminal (rich), as Markdown and as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from crosspipe.report import markup
from crosspipe.report.rows import groups
from crosspipe.report.wording import MISSING, gap, interval, number, percent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One line: `cells` in the order of the head, whether it is the fastest of its `group` (setting and delay)."""

    cells: tuple[str, ...]
    group: tuple[str, str]
    fastest: bool
    finished: bool


@dataclass(frozen=True)
class SummaryTable:
    """The table as text cells. Rich prints it as it is (`console.print(table)`), with the notes below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table for the terminal; where it is too narrow, without the intervals."""
        from rich.measure import Measurement
        from rich.text import Text

        table = self._for_terminal(compact=False)
        if Measurement.get(console, options.update(max_width=1000), table).maximum > options.max_width:
            table = self._for_terminal(compact=True)
        yield table
        for reason, names in self._notes().items():
            which = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield Text(f"{which}: {reason}", style="yellow")

    def _notes(self) -> dict[str, list[str]]:
        """For each note the schedules (with setting and delay) it is about."""
        notes: dict[str, list[str]] = {}
        for row in self.rows if "note" in self.head else ():
            if row.cells[-1]:
                place = ", ".join(filter(None, row.group))
                notes.setdefault(row.cells[-1], []).append(f"{row.cells[0]} {place}")
        return notes

    def _for_terminal(self, *, compact: bool) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0 if compact else 1, 0, 0))
        shown = [name for name in self.head if name != "note"]
        for name in shown:
            header = name.replace(" [95 %]", "").replace("vs best ", "vs best\n") if compact else name
            table.add_column(header, justify="left" if name in _TEXT_COLUMNS else "right", no_wrap=True)
        for index, row in enumerate(self.rows):
            last = index + 1 < len(self.rows) and self.rows[index + 1].group != row.group
            style = "bold green" if row.fastest else None if row.finished else "yellow"
            cells = (cell.partition(" [")[0] if compact else cell for cell in row.cells[: len(shown)])
            table.add_row(*map(Text, cells), style=style, end_section=last)
        return table

    def to_markdown(self) -> str:
        """The table in Markdown, the fastest of each group in bold."""
        rule = [":--" if name in _TEXT_COLUMNS else "--:" for name in self.head]
        lines = [list(self.head), rule]
        for row in self.rows:
            cells = [cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in row.cells]
            lines.append([f"**{cell}**" if row.fastest and cell != MISSING else cell for cell in cells])
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_html(self) -> markup.Markup:
        """The table in HTML; the fastest of each group carries the class `fastest`."""
        classes, group = [], None
        for row in self.rows:
            words = ["group"] if row.group != group else []
            words += ["fastest"] if row.fastest else [] if row.finished else ["unfinished"]
            classes.append(" ".join(words) or None)
            group = row.group
        cells = [row.cells for row in self.rows]
        return markup.table(self.head, cells, caption=self.title, text=_TEXT_COLUMNS, classes=classes)


_TEXT_COLUMNS = ("schedule", "setting", "delay", "note")


def summary_table(points: pl.DataFrame) -> SummaryTable:
    """The summary of `points` (tidy results), by setting, delay and schedule. Iteration times in ms; makespans where
    nothing in the campaign has an iteration time yet."""
    rows = order(points)
    kind = "iteration" if any(r["predicted_iteration_ms"] is not None for r in rows) else "makespan"
    settings = len({r["setting"] for r in rows}) > 1
    measured = any(r["measured_iteration_ms"] is not None for r in rows)
    notes = any(r["status"] not in ("done", "cached") for r in rows)
    head = ["schedule", *(["setting"] if settings else []), "delay", "predicted"]
    head += ["measured [95 %]", "error"] if measured else []
    head += ["vs best static", "gap", "peak MiB", *(["note"] if notes else [])]
    winners = [best[0]["point"] for group in groups(rows) if (best := fastest(group)) and best[2] > 1]
    lines = []
    for r in rows:
        group = (r["setting"], r["delay"])
        cells = [r["schedule"], *([r["setting"]] if settings else []), r["delay"]]
        cells += [number(r[f"predicted_{kind}_ms"])]
        if measured:
            median = (r["measured_iteration_ms"], r["measured_iteration_low_ms"], r["measured_iteration_high_ms"])
            cells += [interval(*median), percent(r["error_percent"])]
        cells += [against_static(r), gap(r["gap_percent"]), number(_peak(r))]
        finished = r["status"] in ("done", "cached")
        cells += [r["reason"]] if notes else []
        lines.append(Row(tuple(cells), group, r["point"] in winners, finished))
    delays = "delay = (T_lat, T_bw)/T_F" if any(r["delay"].startswith("(") for r in rows) else "delay across sites"
    title = "Iteration time in ms" if kind == "iteration" else "Makespan in ms"
    return SummaryTable("; ".join([title, delays, *_limit(rows)]), tuple(head), tuple(lines))


def order(points: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows of `points` by setting and schedule as they first appear, and by growing delay."""
    rows = points.to_dicts()
    settings = list(dict.fromkeys(r["setting"] for r in rows))
    schedules = list(dict.fromkeys(r["schedule"] for r in rows))
    delays: dict[str, tuple[float, float]] = {}  # what one message takes, in T_F and, where no ratio is known, in ms
    for r in rows:
        ratio = (r["latency_ratio"] or 0.0) + (r["bandwidth_ratio"] or 0.0)
        known = (ratio, (r["latency_ms"] or 0.0) + (r["serialisation_ms"] or 0.0))
        delays[r["delay"]] = max(known, delays.get(r["delay"], known))
    return sorted(
        rows,
        key=lambda r: (settings.index(r["setting"]), delays[r["delay"]], r["delay"], schedules.index(r["schedule"])),
    )


def against_static(row: dict[str, Any]) -> str:
    """The comparison with the best static schedule in words: measured where there is a measurement, and then marked
    where chance may explain it."""
    if row["best_static"] is None:
        return MISSING
    if row["best_static"] == row["schedule"]:
        return "best static"
    measured = row["measured_vs_best_static_percent"]
    if measured is None:
        return percent(row["predicted_vs_best_static_percent"])
    return percent(measured) + (" n.s." if row["differs_from_best_static"] is False else "")


def fastest(group: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str, int] | None:
    """The fastest row of one setting and delay, the column that decided and of how many; None where nothing is timed.

    Measured iterations decide where there are any, else simulated makespans.
    """
    for column in ("measured_iteration_ms", "predicted_makespan_ms"):
        timed = [row for row in group if row[column] is not None]
        if timed:
            return min(timed, key=lambda row: row[column]), column, len(timed)
    return None


def _peak(row: dict[str, Any]) -> float | None:
    """Peak activations of the fullest stage in MiB, along the executed order where there is one."""
    measured: float | None = row["measured_peak_activation_mib"]
    return row["predicted_peak_activation_mib"] if measured is None else measured


def _limit(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The activation limits in words; nothing where nothing limits."""
    limits = sorted({r["activation_limit_mib"] for r in rows if r["activation_limit_mib"] is not None})
    ends = dict.fromkeys(limits[:1] + limits[-1:])
    return [f"a stage may hold {' to '.join(map(number, ends))} MiB"] if ends else []
