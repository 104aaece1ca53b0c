"""What is left of a point that failed: every rank notes its iterations as they end, and whoever watches joins them.

A rank that is killed writes nothing more, so nothing is kept for the end.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from crosspipe.execute.plan import Plan
from crosspipe.execute.recording import build_record
from crosspipe.execute.spec import Point, Session
from crosspipe.execute.trace import Trace
from crosspipe.problem import Finding, Problem
from crosspipe.store import load, save, write_timelines

TRACES = "rank*.point*.traces.jsonl"


def trace_file(directory: Path, rank: int, number: int) -> Path:
    """Where a rank notes the iterations of point `number`."""
    return directory / f"rank{rank}.point{number}.traces.jsonl"


class TraceLog:
    """Begins the file anew, then adds a line for every iteration."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def __call__(self, trace: Trace) -> None:
        self._file.write(msgspec.json.encode(trace) + b"\n")

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def read_traces(path: Path) -> list[Trace]:
    """The whole lines of a file of `TraceLog`; none if it is not there."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Trace) for line in lines if line.endswith(b"\n")]


def keep_partial(session: Session, number: int, point: Point, failure: str) -> Path | None:
    """Writes what all ranks finished of the point as `pointN.partial.json` and `.parquet` in the session's directory.

    The JSON is a RunRecord with the failure as a finding; None where not one iteration was finished, or nothing was
    planned.
    """
    directory = Path(session.directory)
    traces = [read_traces(trace_file(directory, rank, number)) for rank in range(session.ranks)]
    if point.plan is None or not all(traces):
        return None
    record, pairs = build_record(session, load(point.problem, Problem), load(point.plan, Plan), traces)
    said = Finding(name="incomplete", detail=f"{len(record.iterations)} iterations were finished: {failure}")
    file = directory / f"point{number}.partial.json"
    write_timelines(file.with_suffix(".parquet"), [anchored for anchored, _ in pairs])
    save(file, msgspec.structs.replace(record, findings=(*record.findings, said)))
    return file


def forget_traces(directory: Path) -> None:
    """Removes what an earlier start noted."""
    for file in directory.glob(TRACES):
        file.unlink(missing_ok=True)
