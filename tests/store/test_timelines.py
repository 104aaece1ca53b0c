"""Timelines in Parquet: the same timelines come back, and any reader sees tidy rows with units."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from crosspipe.errors import ArtifactError
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, simulate_reference
from crosspipe.store import read_timelines, write_timelines

PROBLEM = Problem.uniform(
    stages=2, microbatches=1, sites=2, forward_ms=1, input_grad_ms=2, weight_grad_ms=3, latency_ms=4, serialisation_ms=5
)
ORDER = tuple(Block(kind, 0, 0) for kind in "FDW")
SCHEDULE = Schedule(traversal="ud", stages=2, chunks=1, microbatches=1, orders=(ORDER, ORDER))


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    timeline = simulate_reference(PROBLEM, SCHEDULE)
    path = write_timelines(tmp_path / "t.parquet", [timeline, timeline])
    assert read_timelines(path) == [timeline, timeline]
    assert read_timelines(write_timelines(tmp_path / "none.parquet", [])) == []


def test_rows_hold_the_hand_worked_times(tmp_path: Path) -> None:
    """F 0-1, message 1-6 (served) -10 (there), F 10-11, D 11-13, back 13-18-22, D 22-24, W 24-27; in ms."""
    frame = pl.read_parquet(write_timelines(tmp_path / "t.parquet", [simulate_reference(PROBLEM, SCHEDULE)]))
    messages = frame.filter(pl.col("event") == "message").sort("ready_ns")
    in_ms = messages.select(pl.col("ready_ns", "start_ns", "served_ns", "end_ns") // 1_000_000)
    assert in_ms.rows() == [(1, 1, 6, 10), (13, 13, 18, 22)]
    assert messages["wire"].to_list() == ["0>1", "1>0"]
    last = frame.filter((pl.col("event") == "block") & (pl.col("stage") == 0)).sort("start_ns")
    assert (last["end_ns"] // 1_000_000).to_list() == [1, 24, 27]
    memory = frame.filter((pl.col("event") == "memory") & (pl.col("stage") == 0))
    assert memory["held_bytes"].to_list() == [2**20, 2**19, 0]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(ArtifactError, match="is not a Parquet file of timelines"):
        read_timelines(path)
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(ArtifactError, match="is not a Parquet file of timelines"):
        read_timelines(path)
    with pytest.raises(ArtifactError, match="no such file"):
        read_timelines(tmp_path / "missing.parquet")
