"""Real processes killed at the worst moment: started again, the campaign ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.driver import plan_campaign, run_campaign
from crosspipe.campaign.outcomes import read_jobs
from crosspipe.campaign.status import campaign_status, cancel_campaign
from crosspipe.store.claims import holder_lives

DRIVER = """
import json, sys
from pathlib import Path
from crosspipe.campaign.driver import plan_campaign, run_campaign
from crosspipe.campaign.points import make_points
class Deaf:
    def begin(self, plan): pass
    def ended(self, node, status, reason): print(node.request.stage, status, reason, flush=True)
    def now(self, stage, text): pass
configs, overrides = json.loads(sys.argv[1])
plan = plan_campaign(make_points(configs, overrides))
summary = run_campaign(plan, Path(sys.argv[2]), Deaf(), bodies="standin_bodies")
sys.exit(len(summary.failures))
"""


class Deaf:
    """Hears everything, says nothing."""

    def begin(self, plan: Any) -> None: ...

    def ended(self, node: Any, status: str, reason: str) -> None: ...

    def now(self, stage: str, text: str) -> None: ...


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout_s} s in vain for {what}")


@pytest.fixture
def driver(
    config: dict[str, Any], change: Callable[..., Any], orders: Path, tmp_path: Path
) -> Callable[[], subprocess.Popen[bytes]]:
    """Starts a driver of two points with the local executor (submitit), as a process."""
    base = change(config, cluster__executor="local", solver__points_per_job=1, run__points_per_job=1)
    configs = [change(base, schedule__name=name) for name in ("1f1b", "zbh1")]
    argument = json.dumps([configs, [["schedule=1f1b"], ["schedule=zbh1"]]])
    return lambda: subprocess.Popen([sys.executable, "-c", DRIVER, argument, str(tmp_path / "campaign")])


def trace(orders: Path) -> list[str]:
    return (orders / "trace").read_text().splitlines()


def assert_complete_and_nothing_twice(orders: Path, directory: Path) -> None:
    assert campaign_status(directory).complete
    made = sorted(line for line in trace(orders) if line.startswith("made"))
    assert made == sorted(
        ["made links 1f1b", "made blocks 1f1b"] + [f"made {s} {n}" for s in ("solve", "run") for n in ("1f1b", "zbh1")]
    )


def test_the_driver_killed_leaves_its_job_and_the_next_one_goes_on(
    driver: Callable[[], subprocess.Popen[bytes]], orders: Path, tmp_path: Path
) -> None:
    (orders / "hold-solve").touch()
    first = driver()
    wait_for(lambda: "begin solve 1f1b" in trace(orders), "the first solve to begin")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = driver()
    wait_for(lambda: len(read_jobs(tmp_path / "campaign")) >= 4, "the second driver's job")
    (orders / "hold-solve").unlink()
    assert second.wait(timeout=60) == 0
    assert_complete_and_nothing_twice(orders, tmp_path / "campaign")
    assert trace(orders).count("begin solve 1f1b") == 1  # the orphan's work was waited for, not repeated


def test_a_job_killed_once_is_made_by_another(
    driver: Callable[[], subprocess.Popen[bytes]], orders: Path, tmp_path: Path
) -> None:
    (orders / "hold-run").touch()
    first = driver()
    wait_for(lambda: "begin run 1f1b" in trace(orders), "the first run to begin")
    job = next(j for j in read_jobs(tmp_path / "campaign") if j.task == "run-000")
    os.kill(job.process.pid, signal.SIGKILL)
    (orders / "hold-run").unlink()
    assert first.wait(timeout=60) == 0
    assert_complete_and_nothing_twice(orders, tmp_path / "campaign")


def test_a_point_that_kills_its_job_fails_alone_and_is_made_by_the_next_start(
    points: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    (orders / "crash-solve").write_text("zbh1_delay-0-0")  # the third of three packed into one job
    summary = run_campaign(
        plan_campaign(points(cluster__executor="local")), tmp_path / "c", Deaf(), bodies="standin_bodies"
    )
    (failed, outcome), (blocked, _) = summary.failures
    assert (failed.points, blocked.points) == (("zbh1_delay-0-0",),) * 2
    assert "ended without a result" in outcome.reason
    (orders / "crash-solve").unlink()
    again = plan_campaign(points(cluster__executor="local"))
    assert run_campaign(again, tmp_path / "c", Deaf(), bodies="standin_bodies").failures == []
    made = [line for line in trace(orders) if line.startswith("made")]
    assert len(made) == len(set(made)) == 10


def test_cancel_ends_driver_and_jobs_and_a_new_start_completes(
    driver: Callable[[], subprocess.Popen[bytes]], orders: Path, tmp_path: Path
) -> None:
    (orders / "hold-run").touch()
    first = driver()
    wait_for(lambda: "begin run 1f1b" in trace(orders), "the first run to begin")
    assert cancel_campaign(tmp_path / "campaign", grace_s=5) >= 2
    assert first.wait(timeout=20) != 0
    assert not any(holder_lives(job.process) for job in read_jobs(tmp_path / "campaign"))
    status = {stage.stage: stage for stage in campaign_status(tmp_path / "campaign").stages}
    assert (status["run"].running, status["run"].done) == (0, 0)
    (orders / "hold-run").unlink()
    assert driver().wait(timeout=60) == 0
    assert_complete_and_nothing_twice(orders, tmp_path / "campaign")


def test_an_interrupt_from_the_terminal_cancels_and_records_nothing_half_searched(
    driver: Callable[[], subprocess.Popen[bytes]], orders: Path, tmp_path: Path
) -> None:
    (orders / "hold-solve").touch()
    first = driver()
    wait_for(lambda: "begin solve 1f1b" in trace(orders), "the first solve to begin")
    job = next(j for j in read_jobs(tmp_path / "campaign") if j.task == "solve-000")
    os.kill(job.process.pid, signal.SIGINT)  # what a terminal sends to every process of its group
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=30) != 0
    assert not holder_lives(job.process)
    status = {stage.stage: stage for stage in campaign_status(tmp_path / "campaign").stages}
    assert (status["solve"].done, status["solve"].failed, status["solve"].waiting) == (0, 0, 2)
    (orders / "hold-solve").unlink()
    assert driver().wait(timeout=60) == 0
    assert_complete_and_nothing_twice(orders, tmp_path / "campaign")


def test_two_drivers_at_once_share_the_work(
    driver: Callable[[], subprocess.Popen[bytes]], orders: Path, tmp_path: Path
) -> None:
    both = [driver(), driver()]
    assert [process.wait(timeout=90) for process in both] == [0, 0]
    assert_complete_and_nothing_twice(orders, tmp_path / "campaign")
