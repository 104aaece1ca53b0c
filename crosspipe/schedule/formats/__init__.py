"""Schedules and timelines in the formats of others, chosen by the file's extension.

`.csv` is PyTorch pipelining's order of actions (read and written), `.trace.json` a trace for Perfetto or
chrome://tracing, `.goal` a schedule for LogGOPSim (both written). Our own `.json` belongs to `crosspipe.store`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from crosspipe.errors import ArtifactError, UsageError
from crosspipe.problem import Problem
from crosspipe.schedule.formats.goal import goal_text
from crosspipe.schedule.formats.pipelining import pipelining_csv, read_pipelining
from crosspipe.schedule.formats.trace import trace_json
from crosspipe.schedule.order import Schedule
from crosspipe.schedule.simulation import simulate
from crosspipe.schedule.timeline import Timeline

__all__ = ["READABLE", "WRITABLE", "goal_text", "pipelining_csv", "read", "read_pipelining", "trace_json", "write"]

Format = TypeVar("Format")


def read(path: str | Path) -> Schedule:
    """The Schedule in a file of another project; UsageError for an extension we do not read.

    Raises FieldError or ArtifactError (with file, row and column) for what the file should not hold, Deadlock where its
    sends and receives can never meet.
    """
    return _chosen(path, READABLE, "read")(Path(path))


def write(path: str | Path, content: Schedule | Timeline, problem: Problem | None = None) -> None:
    """Writes a Schedule or a Timeline in the format of the extension; nothing is left where it cannot.

    A trace of a Schedule and a GOAL file need its `problem`; UsageError where it is missing or the extension is none we
    write, ArtifactError where the place is not writable.
    """
    text = _chosen(path, WRITABLE, "write")(content, problem)
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ArtifactError(f"{target}: cannot be written ({error.strerror}); choose another place") from error


def _chosen(path: str | Path, formats: dict[str, Format], verb: str) -> Format:
    """The format whose extension `path` has."""
    for extension, chosen in formats.items():
        if Path(path).name.endswith(extension):
            return chosen
    raise UsageError("file", str(path), f"no format to {verb} has this extension", f"use {', '.join(formats)}")


def _as_csv(content: Schedule | Timeline, _: Problem | None) -> str:
    return pipelining_csv(content if isinstance(content, Schedule) else _order_of(content))


def _as_trace(content: Schedule | Timeline, problem: Problem | None) -> str:
    if isinstance(content, Schedule):
        content = simulate(_required(problem, "a trace of a schedule"), content)
    return trace_json({"": content})


def _as_goal(content: Schedule | Timeline, problem: Problem | None) -> str:
    schedule = content if isinstance(content, Schedule) else _order_of(content)
    return goal_text(_required(problem, "a GOAL file"), schedule)


def _required(problem: Problem | None, what: str) -> Problem:
    if problem is None:
        raise UsageError("problem", None, f"{what} has the block times in it", "give the problem file")
    return problem


def _order_of(timeline: Timeline) -> Schedule:
    """The order a timeline ran in."""
    return Schedule(
        traversal=timeline.traversal,
        stages=timeline.stages,
        chunks=timeline.chunks,
        microbatches=timeline.microbatches,
        orders=tuple(tuple(timed.block for timed in row) for row in timeline.blocks),
    )


READABLE: dict[str, Callable[[Path], Schedule]] = {".csv": read_pipelining}
WRITABLE: dict[str, Callable[[Schedule | Timeline, Problem | None], str]] = {
    ".csv": _as_csv,
    ".trace.json": _as_trace,
    ".goal": _as_goal,
}
