"""Outcomes and jobs of a campaign directory: small files that whoever runs a stage leaves for whoever looks.

`outcomes/<stage>/<key>.json` says how an artifact's making ended, `jobs/<task>.json` which process works on a task and
`jobs/<task>.now` what it is doing. The store alone says what is done; these say why something is not.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from crosspipe.campaign.cluster import REPORT
from crosspipe.store import load, save
from crosspipe.store.campaign_file import Ending, Outcome, outcome_path
from crosspipe.store.claims import Claim

DRIVER = "driver"  # the task name of whoever submits and follows
REPORTED = f"{REPORT}/{REPORT}"  # the outcome of the job that writes the report; no artifact of the store
REPORT_WORDS = "report.txt"  # in the folder of the jobs: what that job showed


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="job"):
    """The process of a task: `process` tells whether it still lives, `log` (if any) is relative to the campaign's."""

    schema: int = 1
    task: str
    job: str
    process: Claim
    log: str | None = None


def write_outcome(
    campaign: Path, reference: str, status: Ending, *, reason: str = "", log: str | None = None, job: str | None = None
) -> None:
    """Says how the making of `reference` ended."""
    stage, key = reference.split("/")
    path = outcome_path(campaign, stage, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, Outcome(stage=stage, key=key, status=status, reason=reason, log=log, job=job, ended_at_s=time.time()))


def read_outcome(campaign: Path, reference: str) -> Outcome | None:
    """How the making of `reference` ended, None if it has not (or nobody said so)."""
    path = outcome_path(campaign, *reference.split("/"))
    return load(path, Outcome) if path.exists() else None


def ended(campaign: Path) -> set[str]:
    """Every reference that has an outcome: one look at a folder per stage."""
    return {f"{path.parent.name}/{path.stem}" for path in (campaign / "outcomes").glob("*/*.json")}


def forget_outcome(campaign: Path, reference: str) -> None:
    """Removes an earlier outcome before another try."""
    outcome_path(campaign, *reference.split("/")).unlink(missing_ok=True)


def forget_report(campaign: Path) -> None:
    """Removes what an earlier job said of its report."""
    forget_outcome(campaign, REPORTED)
    (campaign / "jobs" / REPORT_WORDS).unlink(missing_ok=True)


def write_job(campaign: Path, record: JobRecord) -> None:
    """Says which process works on a task."""
    (campaign / "jobs").mkdir(parents=True, exist_ok=True)
    save(campaign / "jobs" / f"{record.task}.json", record)


def read_jobs(campaign: Path, without: Collection[str] = ()) -> list[JobRecord]:
    """Every job that ever started here, but those of the tasks `without`."""
    paths = sorted((campaign / "jobs").glob("*.json"))
    return [load(path, JobRecord) for path in paths if path.stem not in without]


def say_now(campaign: Path, task: str, text: str) -> None:
    """What a task is doing right now, in a few words; for progress bars, so worth neither an fsync nor a failure."""
    path = campaign / "jobs" / f"{task}.now"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        temporary.write_text(text)
        temporary.replace(path)


def hear_now(campaign: Path, task: str) -> str:
    """What a task said last."""
    path = campaign / "jobs" / f"{task}.now"
    return path.read_text() if path.exists() else ""
