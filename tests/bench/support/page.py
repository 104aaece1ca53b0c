"""Markdown of the benchmark pages: tables, and how a page says what it was measured with."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.results import Result
from support.setup import Setup

from crosspipe.problem.spread import Spread


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """A Markdown table; the first `text_columns` are left-aligned, the others right-aligned."""
    marks = ["---" if i < text_columns else "--:" for i in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, marks, *rows))


def milliseconds(time_ns: float) -> str:
    return f"{time_ns / 1e6:.2f}"


def seconds(time_s: float) -> str:
    return f"{time_s:.1f}" if time_s >= 1 else f"{time_s:.2f}"


def percent(share: float) -> str:
    return "–" if share == float("inf") else f"{100 * share:.2f} %"


def interval_words(spread: Spread, scale: float = 1) -> list[str]:
    """Median, 95 % interval and number of samples, as cells."""
    interval = "–"
    if spread.low is not None and spread.high is not None:
        interval = f"{scale * spread.low:.4g} to {scale * spread.high:.4g}"
    return [f"{scale * spread.median:.4g}", interval, str(spread.samples)]


def measured_with(found: Iterable[tuple[Setup, Result]], command: Sequence[str]) -> str:
    """With what, when and by which command a page's results were measured; set-ups are lettered."""
    dates: dict[str, list[str]] = {}
    for setup, result in found:
        dates.setdefault(str(setup), []).append(result.finished)
    lines = [f"Written by `{shlex.join(command)}`."]
    letters = letters_of(dates)
    for words, days in dates.items():
        span = f"{min(days)} to {max(days)}"
        lines.append(f"{letters[words]}Measured {span} UTC on {words}.")
    return "\n\n".join(lines)


def letters_of(words: Iterable[str]) -> dict[str, str]:
    """A prefix per set-up, empty where there is only one."""
    known = list(words)
    return {w: f"({chr(ord('a') + i)}) " if len(known) > 1 else "" for i, w in enumerate(known)}


def write(path: Path, *parts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part for part in parts if part) + "\n")
