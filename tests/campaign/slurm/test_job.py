"""One job of an array, as a process: its place in the array, Slurm's warning, another life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crosspipe.campaign.driver import plan_campaign
from crosspipe.campaign.job import Me, myself
from crosspipe.campaign.outcomes import REPORTED, hear_now, read_outcome
from crosspipe.campaign.slurm import journal
from crosspipe.campaign.slurm.claims import JobLives
from crosspipe.campaign.slurm.queue import Queue
from crosspipe.campaign.slurm.submit import submit_campaign
from crosspipe.campaign.status import campaign_status
from crosspipe.campaign.tasks import Task
from crosspipe.store import Store, load, my_claim


@pytest.fixture
def submitted(points: Callable[..., Any], slurm: Any, orders: Path, tmp_path: Path) -> Callable[..., Path]:
    """Submits a campaign whose bodies stand in; returns its directory."""

    def submit(**values: Any) -> Path:
        plan = plan_campaign(points(cluster__executor="slurm", cluster__patience_s=0.1, **values))
        submit_campaign(plan, tmp_path / "c", lambda text: None, bodies="standin_bodies")
        return tmp_path / "c"

    return submit


def start(campaign: Path, stage: str, index: int | None = None) -> subprocess.Popen[bytes]:
    """Does for a job what slurmstepd does."""
    (entry,) = (e for e in journal.submissions(campaign) if e.stage == stage)
    place = {} if index is None else {"SLURM_ARRAY_JOB_ID": str(entry.job), "SLURM_ARRAY_TASK_ID": str(index)}
    return subprocess.Popen(
        [sys.executable, "-m", "crosspipe.campaign.slurm.job", str(journal.path_of(campaign, entry))],
        env={**os.environ, "SLURM_JOB_ID": str(entry.job), "SUBMITIT_EXECUTOR": "slurm", **place},
    )


def outcomes(campaign: Path, task: str) -> list[str]:
    references = load(campaign / "tasks" / f"{task}.json", Task).references
    return [found.status if (found := read_outcome(campaign, reference)) else "" for reference in references]


def wait_for(orders: Path, line: str) -> None:
    deadline = time.monotonic() + 60
    while line not in (orders / "trace").read_text().splitlines():
        assert time.monotonic() < deadline, line
        time.sleep(0.05)


def test_a_job_makes_the_task_of_its_place(submitted: Callable[..., Path], orders: Path) -> None:
    campaign = submitted()
    for stage, index in (("links", None), ("blocks", None), ("solve", 1), ("solve", 0), ("run", None)):
        assert start(campaign, stage, index).wait(timeout=60) == 0
    assert outcomes(campaign, "solve-000") == ["done"] * 3
    assert outcomes(campaign, "solve-001") == ["done"]
    assert campaign_status(campaign).complete
    made = [line for line in (orders / "trace").read_text().splitlines() if line.startswith("made solve")]
    assert made[0] == "made solve zbh1_delay-1-0.25"  # element 1 came first


def test_the_last_job_writes_the_report_and_says_how_that_ended(submitted: Callable[..., Path], slurm: Any) -> None:
    campaign = submitted()
    (waiting,) = [stage for stage in campaign_status(campaign).stages if stage.stage == "report"]
    assert (waiting.waiting, waiting.now) == (1, "1 in the queue (Priority)")
    assert start(campaign, "report").wait(timeout=60) == 0
    outcome = read_outcome(campaign, REPORTED)
    assert outcome is not None
    assert (outcome.status, outcome.job, outcome.log) == ("done", "105", "logs/105_0_log.out")
    assert (campaign / "report" / "report.html").exists()
    assert f"report: {campaign / 'report' / 'report.html'}" in (campaign / "jobs" / "report.txt").read_text()
    status = campaign_status(campaign)
    assert [stage.done for stage in status.stages if stage.stage == "report"] == [1]
    assert not status.complete  # that a report is there does not make the artifacts


def test_a_report_that_fails_is_a_trouble_with_its_log(submitted: Callable[..., Path]) -> None:
    campaign = submitted()
    (campaign / "report").write_text("in the way")
    assert start(campaign, "report").wait(timeout=60) == 0
    (trouble,) = campaign_status(campaign).troubles
    assert trouble.outcome.stage == "report"
    assert "the report cannot be written" in trouble.outcome.reason
    assert trouble.log == campaign / "logs" / "105_0_log.out"


def test_a_report_that_a_later_one_replaces_says_nothing(submitted: Callable[..., Path]) -> None:
    campaign = submitted()
    task = (campaign / "tasks" / "report-000.json").read_text()
    (campaign / "tasks" / "report-001.json").write_text(task.replace("report-000", "report-001"))
    assert start(campaign, "report").wait(timeout=60) == 0
    assert read_outcome(campaign, REPORTED) is None


def test_a_missing_input_blocks_and_is_no_failure_of_the_job(submitted: Callable[..., Path]) -> None:
    campaign = submitted()
    assert start(campaign, "run").wait(timeout=60) == 0
    assert outcomes(campaign, "run-000") == ["blocked"] * 4
    assert "its input blocks was never made" in campaign_status(campaign).troubles[0].outcome.reason


def test_warned_it_keeps_what_is_done_and_goes_on_in_another_life(
    submitted: Callable[..., Path], slurm: Any, orders: Path
) -> None:
    campaign = submitted()
    for stage in ("links", "blocks"):
        assert start(campaign, stage).wait(timeout=60) == 0
    (orders / "fail-solve").write_text("nothing")
    (orders / "hold-solve").touch()
    job = start(campaign, "solve", 0)
    wait_for(orders, "begin solve 1f1b_delay-0-0")
    job.send_signal(signal.SIGUSR2)
    assert job.wait(timeout=60) == 0
    assert slurm.calls["scontrol"] == 2  # MaxArraySize, and now the requeue
    assert outcomes(campaign, "solve-000") == ["", "", ""]
    (orders / "hold-solve").unlink()
    assert start(campaign, "solve", 0).wait(timeout=60) == 0
    assert outcomes(campaign, "solve-000") == ["done"] * 3


def test_a_run_that_was_kept_on_its_way_is_progress(submitted: Callable[..., Path], slurm: Any, orders: Path) -> None:
    """A time limit that comes before the end of a run is no failure where the run goes on from another iteration."""
    campaign = submitted(cluster__resources={stage: {"minutes": 2} for stage in ("links", "blocks", "solve", "run")})
    for stage, index in (("links", None), ("blocks", None), ("solve", 0), ("solve", 1)):
        assert start(campaign, stage, index).wait(timeout=60) == 0
    (orders / "keep-run").write_text("00000040")
    (orders / "hold-run").touch()
    for requeued in (1, 0):  # the second life finds that state, and makes no other
        (orders / "trace").write_text("")
        before = (slurm.folder / "calls").read_text().count("scontrol requeue")
        job = start(campaign, "run")
        wait_for(orders, "begin run 1f1b_delay-0-0")
        job.send_signal(signal.SIGUSR2)
        assert job.wait(timeout=60) == 0
        assert (slurm.folder / "calls").read_text().count("scontrol requeue") - before == requeued
    assert outcomes(campaign, "run-000") == ["failed"] * 4


def test_a_requeue_that_slurm_refuses_is_said(submitted: Callable[..., Path], slurm: Any, orders: Path) -> None:
    campaign = submitted(cluster__resources={stage: {"minutes": 60} for stage in ("links", "blocks", "solve", "run")})
    slurm.order("no-requeue")
    (orders / "hold-links").touch()
    job = start(campaign, "links")
    wait_for(orders, "begin links 1f1b_delay-0-0")
    job.send_signal(signal.SIGUSR2)
    assert job.wait(timeout=60) == 0
    reason = campaign_status(campaign).troubles[0].outcome.reason
    assert "could not be requeued: scontrol failed" in reason
    assert "presently disabled" in reason


def test_a_job_that_only_waited_for_anothers_claim_goes_on_waiting_later(
    submitted: Callable[..., Path], slurm: Any, orders: Path
) -> None:
    limits = {stage: {"minutes": 2} for stage in ("links", "blocks", "solve", "run")}
    campaign = submitted(cluster__resources=limits)
    task = load(campaign / "tasks" / "links-000.json", Task)
    assert Store(task.store).claim(task.requests[0], my_claim()) is None  # this living process
    job = start(campaign, "links")
    deadline = time.monotonic() + 60
    while "waiting for process" not in hear_now(campaign, "links-000"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR2)
    assert job.wait(timeout=60) == 0
    assert outcomes(campaign, "links-000") == [""]
    assert "scontrol requeue 101" in (slurm.folder / "calls").read_text()


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"minutes": 2}, "the time limit of 2 min came first; raise cluster.resources.links.minutes"),
     ({"minutes": 60, "requeue": False}, "it was preempted, and cluster.resources.links.requeue is off")],
)  # fmt: skip
def test_a_warning_that_leads_to_no_other_life_is_a_failure(
    submitted: Callable[..., Path], slurm: Any, orders: Path, limit: dict[str, Any], reason: str
) -> None:
    resources = {stage: {"minutes": 5} for stage in ("links", "blocks", "solve", "run")} | {"links": limit}
    campaign = submitted(cluster__resources=resources)
    (orders / "hold-links").touch()
    job = start(campaign, "links")
    wait_for(orders, "begin links 1f1b_delay-0-0")
    job.send_signal(signal.SIGUSR2)
    assert job.wait(timeout=60) == 0
    (trouble, *_) = campaign_status(campaign).troubles
    assert trouble.outcome.reason == reason
    (links,) = load(campaign / "tasks" / "links-000.json", Task).requests
    assert Store(load(campaign / "tasks" / "links-000.json", Task).store).done(links) is None


def test_the_claim_of_a_killed_life_elsewhere_is_taken_over(
    submitted: Callable[..., Path], slurm: Any, orders: Path
) -> None:
    campaign = submitted()
    (orders / "hold-links").touch()
    first = start(campaign, "links")
    wait_for(orders, "begin links 1f1b_delay-0-0")
    first.send_signal(signal.SIGKILL)
    first.wait()
    (orders / "hold-links").unlink()
    task = load(campaign / "tasks" / "links-000.json", Task)
    (claim,) = (Store(task.store).directory(task.requests[0])).glob("claim.json")
    claim.write_text(claim.read_text().replace('"host": "', '"host": "elsewhere-'))
    assert start(campaign, "links").wait(timeout=60) == 0  # the same job, requeued: nobody need be asked
    assert outcomes(campaign, "links-000") == ["done"]
    assert slurm.calls["squeue"] == 0


@pytest.mark.parametrize(
    ("changed", "silent_s", "lives"),
    [
        ({}, 300.0, True),  # the job runs, whatever its claim says
        ({"cluster": "other"}, 5.0, True),  # the local squeue knows nothing of it: its touch counts
        ({"cluster": "other"}, 3600.0, False),
        ({"submitted_at_s": -3600.0}, 300.0, False),  # claimed before the job of this number was submitted
    ],
)
def test_who_lives_is_asked_of_its_own_cluster_and_of_the_job_that_claimed(
    submitted: Callable[..., Path], slurm: Any, monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any], silent_s: float, lives: bool,
) -> None:  # fmt: skip
    submitted()
    slurm.say(j101=["RUNNING"])
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "here")
    if "submitted_at_s" in changed:
        changed = {"submitted_at_s": time.time() + changed["submitted_at_s"]}
    claim = msgspec.structs.replace(my_claim("101", None, "here"), host="elsewhere", **changed)
    assert JobLives(Me("999", slurm=True), Queue())(claim, silent_s) is lives


def test_a_job_of_an_allocation_claims_in_the_name_of_slurms_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "4711")
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    assert myself().claim().job is None
    monkeypatch.setenv("SLURM_JOB_ID", "101")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "here")
    me = myself()
    assert (str(me), me.log) == ("4711", "logs/4711_0_log.out")  # its own number is submitit's
    assert (me.claim().job, me.claim().array_index, me.claim().cluster) == ("101", None, "here")


@pytest.mark.parametrize(
    ("claimed_s", "silent_s", "lives"),
    [
        (-60.0, 1.0, False),  # an earlier life of the allocation, on another first node: nobody waits for it
        (60.0, 1.0, True),  # this life, on another of its nodes
        (60.0, 3600.0, False),  # and silent for long
    ],
)
def test_what_an_earlier_life_of_the_allocation_claimed_is_free(
    submitted: Callable[..., Path], slurm: Any, claimed_s: float, silent_s: float, lives: bool
) -> None:
    submitted()
    slurm.say(j101=["RUNNING"])
    began_s = time.mktime(time.strptime(slurm.jobs["101"]["at"], "%Y-%m-%dT%H:%M:%S"))
    claim = msgspec.structs.replace(my_claim("101"), host="elsewhere", submitted_at_s=began_s + claimed_s)
    assert JobLives(Me("4711", within=("101", None)), Queue())(claim, silent_s) is lives
