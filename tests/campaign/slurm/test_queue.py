"""What Slurm says of jobs, and what is said of Slurm: no accounting, accounting that is away, a word nobody knows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.driver import plan_campaign
from crosspipe.campaign.slurm.queue import Queue
from crosspipe.campaign.slurm.states import JobId
from crosspipe.campaign.slurm.submit import submit_campaign

JOB = JobId("101")


@pytest.fixture
def submitted(points: Callable[..., Any], slurm: Any, tmp_path: Path) -> dict[str, float]:
    """Jobs 101 to 105, and when they were submitted."""
    submit_campaign(plan_campaign(points(cluster__executor="slurm")), tmp_path / "c", lambda text: None)
    return dict.fromkeys(slurm.jobs, time.time())


def test_that_accounting_is_off_is_said_once_and_not_asked_again(submitted: dict[str, float], slurm: Any) -> None:
    slurm.order("no-accounting")
    slurm.say(j101=["GONE"])
    heard: list[str] = []
    queue = Queue(heard.append)
    for _ in range(3):
        assert queue.states(submitted, [JOB])[JOB].phase == "ended"
    assert heard == ["accounting is off here: how a job died that could not say so itself is not known"]
    assert heard == queue.notes
    assert (slurm.calls["squeue"], slurm.calls["sacct"]) == (3, 1)


def test_accounting_that_does_not_answer_once_is_not_off(submitted: dict[str, float], slurm: Any) -> None:
    slurm.order("deaf")
    slurm.say(j101=["OUT_OF_MEMORY", "0:125"])
    queue = Queue()
    for _ in range(2):
        assert queue.states(submitted, [JOB])[JOB].state == "UNKNOWN"
    (note,) = queue.notes
    assert note.startswith("accounting does not answer: sacct failed")
    (slurm.folder / "deaf").unlink()
    assert queue.states(submitted, [JOB])[JOB].state == "OUT_OF_MEMORY"
    assert queue.accounting


def test_a_state_that_no_slurm_has_is_taken_to_run_and_said(submitted: dict[str, float], slurm: Any) -> None:
    slurm.say(j101=["DREAMING"])
    queue = Queue()
    assert queue.states(submitted, [JOB])[JOB].phase == "running"
    assert queue.states(submitted, [JOB])[JOB].phase == "running"
    assert queue.notes == ["Slurm calls a job 'DREAMING', which this version does not know: it is taken to run"]
