"""What the ranks noted in their files comes together, also where a file of another host is seen late, or not whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from sessions import session_of, two_stages

from crosspipe.errors import ArtifactError
from crosspipe.execute.partial import TraceLog, trace_file, traces_of_all
from crosspipe.execute.trace import Trace
from crosspipe.solver import solve


def noted(index: int, loss: float | None) -> Trace:
    """An iteration without events; its loss has no short decimal."""
    return Trace(
        index=index, begin_ns=2**62 + index, blocks=(), messages=(), sent=0, blocks_end_ns=0, norm_end_ns=0,
        raw_norm_end_ns=0, step_end_ns=0, raw_step_end_ns=0, loss=loss, gradient_norm=1 / 3, clip_factor=0.1,
    )  # fmt: skip


@pytest.fixture
def point(tmp_path: Path):
    """(session of two ranks and three iterations, its number 0, that point); both ranks have noted two."""
    problem = two_stages()
    session = session_of(tmp_path, {"a": solve(problem, "1f1b")}, problem, warmup=1, iterations=2)
    Path(session.directory).mkdir()
    for rank in (0, 1):
        write(session, rank, range(2))
    return session, 0, session.points[0]


def write(session, rank: int, indices: range) -> None:
    log = TraceLog(trace_file(session, 0, session.points[0], rank))
    for index in indices:
        log(noted(index, None if rank == 0 else 2 / 3 + index))
    log.close()


def test_a_file_that_is_seen_late_is_waited_for_and_nothing_is_rounded(point):
    session = point[0]
    write(session, 0, range(3))
    half = threading.Timer(0.3, write, (session, 1, range(3)))
    half.start()
    began = time.monotonic()
    traces = traces_of_all(*point)
    half.join()
    assert time.monotonic() - began >= 0.25
    assert [[t.index for t in row] for row in traces] == [[0, 1, 2]] * 2
    assert [t.loss for t in traces[1]] == [2 / 3, 2 / 3 + 1, 2 / 3 + 2]
    assert traces[0][2] == noted(2, None)


def test_a_file_that_never_comes_whole_is_named(point, monkeypatch):
    monkeypatch.setattr("crosspipe.execute.partial._ELSEWHERE_S", 0.1)
    write(point[0], 0, range(3))
    with trace_file(point[0], 0, point[2], 1).open("ab") as file:
        file.write(b'{"index":2,')  # a line that is not whole does not count
    with pytest.raises(ArtifactError, match=r"rank1.*: has 2 of the 3 iterations that rank 1 noted; run in a dir"):
        traces_of_all(*point)
