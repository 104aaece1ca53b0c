"""The whole road with real parts: MPI, profiler, solver, four training processes, report. Small, nothing stands in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crosspipe.campaign.status import campaign_status
from crosspipe.problem import Problem
from crosspipe.store import RunRecord, load, read_timelines
from crosspipe.store.campaign_file import CAMPAIGN_FILE, CampaignFile

pytestmark = pytest.mark.serial

SMALL = (
    "model=tiny", "network.delay=[1,0.25]", "run.iterations=2", "run.warmup=1", "run.pace=4", "run.points_per_job=4",
    "network.tolerance=1", "profile.links.time_budget=1", "profile.links.largest=null",
    "+profile.links.sizes=[1024,16384]", "profile.blocks.budget_s=1", "profile.blocks.repetitions=6",
)  # fmt: skip


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "crosspipe.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 200) -> tuple[int, str]:
    said, _ = process.communicate(timeout=timeout_s)
    return process.returncode, said


def test_from_configuration_to_report_and_again_for_nothing(tmp_path: Path) -> None:
    command = ("run", *SMALL, "schedule=1f1b,zbh1", "campaign_dir=first")
    code, said = finish(start(tmp_path, *command))
    assert code == 0, said
    assert "report: first/report/report.html" in said
    page = (tmp_path / "first" / "report" / "report.html").read_text()
    assert "1f1b" in page
    assert "zbh1" in page

    campaign = load(tmp_path / "first" / CAMPAIGN_FILE, CampaignFile)
    for point in campaign.points:
        solved, ran = (Path(campaign.store) / stage / point.keys[stage] for stage in ("solve", "run"))
        problem, record = load(solved / "problem.json", Problem), load(ran / "run.json", RunRecord)
        assert [hop.latency_ns for hop in problem.forward_hops][1] == problem.forward_reference_ns()  # T_lat = 1 T_F
        assert len(record.measured) == 2
        assert len(read_timelines(ran / "timelines.parquet")) == 2
        assert record.gradient_relative_error is not None
        assert record.gradient_relative_error < 1e-5

    code, said = finish(start(tmp_path, *command[:-1], "campaign_dir=second"))
    assert code == 0, said
    assert "nothing to do: the store has all 6 artifacts" in said
    assert not list((tmp_path / "second" / "tasks").iterdir())


def test_a_training_process_killed_ends_its_point_and_a_retry_makes_it(tmp_path: Path) -> None:
    command = ("run", *SMALL, "run.iterations=12", "run.check_gradients=false", "schedule=1f1b,zbh1", "campaign_dir=c")
    process = start(tmp_path, *command)
    log_dir = tmp_path / "c" / "logs" / "run-000"
    deadline = time.monotonic() + 120
    while not (text := _now(tmp_path / "c")).startswith("1f1b: iteration 2"):
        assert time.monotonic() < deadline, text
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.kill(_rank(log_dir, 2), signal.SIGKILL)
    code, said = finish(process)
    assert code == 1, said
    assert "rank 2" in said
    status = campaign_status(tmp_path / "c")
    assert [(trouble.points, "rank 2" in trouble.outcome.reason) for trouble in status.troubles] == [(("1f1b",), True)]
    assert {stage.stage: stage.done for stage in status.stages} == {"links": 1, "blocks": 1, "solve": 2, "run": 1}

    code, said = finish(start(tmp_path, "retry", "c"))
    assert code == 0, said
    assert campaign_status(tmp_path / "c").complete


def _now(campaign: Path) -> str:
    path = campaign / "jobs" / "run-000.now"
    return path.read_text() if path.exists() else ""


def _rank(log_dir: Path, rank: int) -> int:
    """The process of a rank, by what it was started with."""
    session = str(log_dir / "session.json")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_text().split("\0")
            environment = (entry / "environ").read_text().split("\0")
        except OSError:
            continue
        if session in command and f"RANK={rank}" in environment:
            return int(entry.name)
    raise AssertionError(f"no rank {rank} of {json.dumps(session)} runs")
