"""Ranks that run out of memory, hang, or meet numbers that are none, as real processes: who, where, what is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sessions import of_our_ranks, session_of, two_stages

from crosspipe.execute.failure import Report, report_file
from crosspipe.execute.session import run_session
from crosspipe.schedule import simulate
from crosspipe.solver import solve
from crosspipe.store import RunRecord, load, read_timelines

pytestmark = pytest.mark.serial

# what a rank runs before anything else: in iteration 2, when rank 1 wants the targets of microbatch 3, it fails
FAULT = """
import os
if os.environ.get("RANK") == "1":
    import time, torch
    from crosspipe.execute.data import Batches
    whole = Batches.__call__
    def batch(self, iteration, microbatch):
        if (iteration, microbatch) == (2, 3):
            {fault}
        return whole(self, iteration, microbatch)
    Batches.__call__ = batch
"""


def fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, **run: object) -> tuple[str, float]:
    """The failure of a point whose rank 1 does `fault`, and the seconds it took."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FAULT.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    problem = two_stages()
    session = session_of(tmp_path, {"only": solve(problem, "1f1b")}, problem, iterations=5, warmup=0, **run)
    began = time.monotonic()
    (outcome,) = run_session(session)
    took = time.monotonic() - began
    assert outcome.record is None
    assert of_our_ranks(tmp_path) == []
    message = str(outcome.failure)
    assert "\n" not in message
    return message, took


# 1F1B of two stages and four microbatches; rank 1: F0 B0 F1 B1 F2 B2 F3 B3, so F3 is the seventh of its blocks
WHERE = "(stage 1, block 7 of 8, F3 of chunk 0)"


def test_a_rank_without_memory_says_so_with_its_place_and_two_iterations_are_kept(tmp_path, monkeypatch):
    message, _ = fail(tmp_path, monkeypatch, "torch.empty(2**50)")
    assert message.startswith("rank 1 failed: out of memory at action ")
    assert f"'compute F3 of chunk 0' {WHERE}" in message
    partial = tmp_path / "logs" / "point0.partial.json"
    assert str(partial) in message
    record = load(partial, RunRecord)
    assert [i.index for i in record.iterations] == [0, 1]
    assert any(f.name == "incomplete" and "out of memory" in f.detail for f in record.findings)
    problem = two_stages()
    predicted = simulate(problem, solve(problem, "1f1b")).makespan_ns
    assert all(i.makespan_ns >= predicted for i in record.iterations)
    assert len(read_timelines(partial.with_suffix(".parquet"))) == 2


def test_a_rank_that_hangs_is_named_and_its_peer_says_what_it_waited_for(tmp_path, monkeypatch):
    message, took = fail(tmp_path, monkeypatch, "time.sleep(600)", timeout_s=3.0)
    assert message.startswith("rank 1 hangs (iteration 2, action ")
    assert "compute F3 of chunk 0" in message
    assert took < 120
    # rank 0: F0 F1 B0 F2 B1 F3 B2 B3; D2 had left rank 1 before
    witness = load(report_file(tmp_path / "logs", 0), Report)
    assert witness.witness
    assert "'wait for message D3 from position 1 from rank 1' (stage 0, block 8 of 8, B3 of chunk 0)" in witness.message
    assert "rank 1 is lost" in witness.message


def test_numbers_that_are_none_end_the_point_with_their_rank(tmp_path, monkeypatch):
    message, _ = fail(tmp_path, monkeypatch, "return tuple(t * 0 - 100 for t in whole(self, iteration, microbatch))")
    assert "failed: iteration 2: the loss of rank 1 is nan; lower the learning rate" in message
