"""Faults injected into a real Slurm while a campaign runs: it ends complete, nothing is lost, nothing is made twice."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.driver import Plan, Summary, plan_campaign
from crosspipe.campaign.outcomes import JobRecord, read_jobs
from crosspipe.campaign.points import make_points
from crosspipe.campaign.slurm.follow import follow_campaign
from crosspipe.campaign.slurm.submit import submit_campaign
from crosspipe.campaign.status import campaign_status
from crosspipe.store.claims import process_started

STANDIN = Path(__file__).parent / "standin"
BODIES = "cluster_bodies"
SCHEDULES = ("1f1b", "zbh1")
CONFIG: dict[str, Any] = {
    "name": "faults",
    "model": {"name": "tiny", "vocabulary": 256, "hidden": 64, "intermediate": 176, "heads": 4, "kv_heads": 2,
              "layers": 4, "sequence": 32},
    "cluster": {"name": "devcluster", "executor": "slurm", "sites": ["dc0", "dc1"], "patience_s": 2,
                "resources": {stage: {"minutes": 5} for stage in ("links", "blocks", "solve", "run")}},
    "network": {"kind": "injected", "delay": [1.0, 0.25]},
    "schedule": {"name": "1f1b"},
    "solver": {"time_limit_s": 5.0, "points_per_job": 1},
    "pipeline": {"sites": 2, "stages": 2, "microbatches": 8, "memory_microbatches": 4.0},
    "profile": {"max_age_days": 30.0, "links": {"time_budget": 1}, "blocks": {"budget_s": 1}},
    "run": {"pace": 2.0, "points_per_job": 1},
}  # fmt: skip
ALL = sorted(["links 1f1b", "blocks 1f1b", *(f"{stage} {name}" for stage in ("solve", "run") for name in SCHEDULES)])

# another process that submits the same campaign: `python -c SUBMIT CONFIGS DIRECTORY`
SUBMIT = """
import json, sys
from pathlib import Path
from crosspipe.campaign.driver import plan_campaign
from crosspipe.campaign.points import make_points
from crosspipe.campaign.slurm.submit import submit_campaign
plan = plan_campaign(make_points(*json.loads(sys.argv[1])))
submit_campaign(plan, Path(sys.argv[2]), lambda text: print(text, flush=True), bodies="cluster_bodies")
"""


class Quiet:
    """Hears everything, says nothing."""

    def begin(self, plan: Any) -> None: ...

    def ended(self, node: Any, status: str, reason: str) -> None: ...

    def now(self, stage: str, text: str) -> None: ...


class Campaign:
    """Two schedules on a development cluster, whose bodies do as `orders` say."""

    def __init__(self, cluster: Any, folder: Path, store: Path | None = None) -> None:
        self.cluster = cluster
        self.directory, self.orders = folder / "campaign", folder / "orders"
        self.store = store or folder / "store"
        self.orders.mkdir()
        (self.orders / "trace").touch()
        (self.orders / "megabytes").write_text("0.01")
        base = {**copy.deepcopy(CONFIG), "store": str(self.store)}
        self.configs = [{**base, "schedule": {"name": name}} for name in SCHEDULES]
        self.overrides = [[f"schedule={name}"] for name in SCHEDULES]

    def plan(self) -> Plan:
        return plan_campaign(make_points(self.configs, self.overrides))

    def submit(self) -> list[str]:
        """Submits what is lacking; returns the jobs' numbers."""
        new = submit_campaign(self.plan(), self.directory, lambda text: None, bodies=BODIES).new
        return [entry.job or "" for entry in new]

    def submitter(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """As `submit`, in a process of its own."""
        command = [sys.executable, "-c", SUBMIT, json.dumps([self.configs, self.overrides]), str(self.directory)]
        return subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
        )

    def hold(self, stage: str) -> None:
        (self.orders / f"hold-{stage}").touch()

    def release(self, stage: str) -> None:
        (self.orders / f"hold-{stage}").unlink()

    def trace(self, word: str) -> list[str]:
        lines = (self.orders / "trace").read_text().splitlines()
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]

    def running(self, stage: str, jobs: int = 1) -> list[JobRecord]:
        """Waits until so many jobs of a stage hold; returns them."""
        self.cluster.wait(lambda: sum(line.startswith(stage) for line in self.trace("begin")) >= jobs, f"{stage} jobs")
        return [job for job in read_jobs(self.directory) if job.task.startswith(f"{stage}-")]

    def follow(self) -> Summary:
        return follow_campaign(self.plan(), self.directory, Quiet())

    def assert_complete(self) -> None:
        """Everything is in the store, made exactly once."""
        status = campaign_status(self.directory)
        assert status.complete, status
        assert sorted(self.trace("made")) == ALL


@pytest.fixture
def talk_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Campaign]:
    """`talk_to(cluster)`: a campaign there, submitted by this process."""

    def make(cluster: Any, store: Path | None = None) -> Campaign:
        campaign = Campaign(cluster, tmp_path, store)
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        root = Path(__file__).parents[2]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(STANDIN), str(root), os.environ.get("PYTHONPATH", ""))))
        monkeypatch.setenv("CROSSPIPE_STANDIN", str(campaign.orders))
        return campaign

    return make


@pytest.fixture
def campaign(cluster: Any, talk_to: Callable[..., Campaign]) -> Campaign:
    """On the cluster without accounting."""
    return talk_to(cluster)


def test_without_a_fault(campaign):
    assert len(campaign.submit()) == 5  # links, blocks, solve, run, report
    assert campaign.follow().failures == []
    campaign.assert_complete()
    assert campaign.submit() == []


def test_a_task_killed_with_9(campaign):
    """It is told as failed, what does not need it goes on, and a second call makes it."""
    campaign.hold("run")
    campaign.submit()
    victim = campaign.running("run", jobs=2)[0]
    os.kill(victim.process.pid, signal.SIGKILL)
    campaign.release("run")
    failures = campaign.follow().failures
    assert [outcome.stage for _, outcome in failures] == ["run"]
    campaign.submit()
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_a_job_requeued_by_the_administrator(campaign):
    campaign.hold("run")
    campaign.submit()
    job = campaign.running("run", jobs=2)[0].job
    campaign.cluster.run("scontrol", "requeue", job)
    campaign.running("run", jobs=3)
    campaign.release("run")
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_jobs_preempted_by_a_higher_partition(campaign):
    campaign.hold("run")
    campaign.submit()
    campaign.running("run", jobs=2)
    campaign.cluster.run("srun", "-p", "high", "-N4", "--exclusive", "sleep", "1")
    campaign.running("run", jobs=4)
    campaign.release("run")
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_scancel_in_the_middle(campaign):
    """One job of an array: its point is told as cancelled, the other one is done; a second call makes it."""
    campaign.hold("run")
    campaign.submit()
    job = campaign.running("run", jobs=2)[0].job
    campaign.cluster.run("scancel", job)
    campaign.release("run")
    failures = campaign.follow().failures
    assert len(failures) == 1
    assert failures[0][1].job == job
    campaign.submit()
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_the_controller_restarts(campaign):
    """While it is away nothing is known of jobs, which is no reason to give them up."""
    campaign.hold("solve")
    campaign.submit()
    campaign.running("solve", jobs=2)
    campaign.cluster.script("stop", "controller")
    campaign.release("solve")
    with ThreadPoolExecutor() as threads:
        followed = threads.submit(campaign.follow)
        time.sleep(12)  # the solves end, and cannot say so to the controller
        campaign.cluster.script("start", "controller")
        assert followed.result().failures == []
    campaign.assert_complete()


def test_a_node_daemon_killed_with_9(campaign):
    """Slurm gives the node up and starts its job elsewhere; the job that lives on there sees that it was replaced."""
    campaign.hold("run")
    campaign.submit()
    job = campaign.running("run", jobs=2)[0]
    campaign.cluster.script("kill", job.process.host)
    campaign.running("run", jobs=3)
    campaign.cluster.wait(lambda: process_started(job.process.pid) != job.process.process_started, "its end", 90)
    campaign.release("run")
    assert campaign.follow().failures == []
    campaign.assert_complete()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_submitter_killed_in_its_second_sbatch(campaign, tmp_path, moment):
    """Whether Slurm has got that job or not: the next call finds what is there and submits the rest."""
    campaign.hold("links")
    campaign.hold("blocks")
    real = shutil.which("sbatch")
    earlier = {number for number, _ in campaign.cluster.history()}
    calls, fake = tmp_path / "calls", tmp_path / "sbatch"
    submit = f'{real} "$@"; ' if moment == "after" else ""
    fake.write_text(f"""#!/bin/sh
        echo "$@" >> {calls}
        if [ "$(wc -l < {calls})" = 2 ]; then {submit} kill -9 $PPID; exit; fi
        exec {real} "$@"
    """)
    fake.chmod(0o755)
    killed = campaign.submitter(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    campaign.submit()
    campaign.release("links")
    campaign.release("blocks")
    assert campaign.follow().failures == []
    campaign.assert_complete()
    names = [name for number, name in campaign.cluster.history() if number not in earlier]
    assert sorted(name.split("-")[1] for name in names) == ["blocks", "links", "report", "run", "solve"]


def test_the_store_runs_full(start_cluster, talk_to, tmp_path):
    """The points that found no room say so and leave nothing half; with room again a second call makes them."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], check=True)
    try:
        with start_cluster() as cluster:  # after the mount, so that its nodes see it
            campaign = talk_to(cluster, store=small / "store")
            (campaign.orders / "megabytes").write_text("0.7")
            campaign.submit()
            failures = campaign.follow().failures
            assert failures
            assert any("No space left" in outcome.reason for _, outcome in failures), failures
            subprocess.run(["mount", "-o", "remount,size=30m", str(small)], check=True)
            (campaign.orders / "trace").write_text("")
            done = set(campaign.plan().cached)
            campaign.submit()
            assert campaign.follow().failures == []
            assert campaign_status(campaign.directory).complete
            assert len(campaign.trace("made")) == len(ALL) - len(done)
    finally:
        subprocess.run(["umount", str(small)], check=True)
