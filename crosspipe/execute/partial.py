"""What the ranks noted of a point: each writes its iterations to a file as they end, and one reads the files of all.

That is rank 0, for the record of a point that ended; or whoever watches, for what is left of one that failed. A rank
that is killed writes nothing more, so nothing is kept for the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from crosspipe.errors import ArtifactError
from crosspipe.execute.plan import Plan
from crosspipe.execute.recording import build_record
from crosspipe.execute.spec import Point, Session
from crosspipe.execute.trace import Trace
from crosspipe.problem import Finding, Problem
from crosspipe.store import load, save, write_timelines
from crosspipe.store.files import write_bytes

TRACES = "rank*.point*.traces.jsonl"
_ELSEWHERE_S = 30.0  # until what was written on another host can be seen here


def trace_file(session: Session, number: int, point: Point, rank: int) -> Path:
    """Where a rank notes the iterations of `point`, the session's point `number`."""
    if point.kept is not None:
        return Path(point.kept) / f"rank{rank}.traces.jsonl"
    return Path(session.directory) / f"rank{rank}.point{number}.traces.jsonl"


class TraceLog:
    """Begins the file anew with the `earlier` iterations, then adds a line for every one after those."""

    def __init__(self, path: Path, earlier: Sequence[Trace] = ()) -> None:
        self._last = earlier[-1].index if earlier else -1
        if earlier:
            write_bytes(path, b"".join(msgspec.json.encode(trace) + b"\n" for trace in earlier))
        self._file = path.open("ab" if earlier else "wb", buffering=0)

    def __call__(self, trace: Trace) -> None:
        if trace.index > self._last:
            self._file.write(msgspec.json.encode(trace) + b"\n")

    def sync(self) -> None:
        """Returns when what was noted survives the machine."""
        os.fsync(self._file.fileno())

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


def traces_of_all(session: Session, number: int, point: Point) -> list[list[Trace]]:
    """`[rank][i]` of a point that all ranks have ended.

    Raises ArtifactError for a file that does not come whole in half a minute.
    """
    wanted = session.run.warmup + session.run.iterations
    deadline = time.monotonic() + _ELSEWHERE_S
    found = []
    for rank in range(session.ranks):
        file = trace_file(session, number, point, rank)
        while len(traces := read_traces(file)) < wanted:
            if time.monotonic() > deadline:
                raise ArtifactError(
                    f"{file}: has {len(traces)} of the {wanted} iterations that rank {rank} noted; "
                    "run in a directory that all ranks see"
                )
            time.sleep(0.1)
        found.append(traces)
    return found


def keep_partial(session: Session, number: int, point: Point, failure: str) -> Path | None:
    """Writes what all ranks finished of the point as `pointN.partial.json` and `.parquet` in the session's directory.

    The JSON is a RunRecord with the failure as a finding; None where not one iteration was finished, or nothing was
    planned.
    """
    directory = Path(session.directory)
    traces = [read_traces(trace_file(session, number, point, rank)) for rank in range(session.ranks)]
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
