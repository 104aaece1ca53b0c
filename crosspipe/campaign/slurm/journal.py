"""The journal of a campaign's submissions: each array is written down before it is submitted, its job's number after.

So a submitting process killed between two calls, or within one, leaves no job that is not known: an entry without a
number is looked for in Slurm by its name, which is its alone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from crosspipe.campaign.slurm.states import JobId
from crosspipe.store import load, save

FOLDER = "submissions"


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="submission"):
    """An array: `tasks[i]` is the task of its element i (of the job itself, if it is the only one).

    `job` is Slurm's number, None until it is known; `name` the job's name there. Times are seconds since the epoch.
    """

    schema: int = 1
    number: int
    stage: str
    name: str
    tasks: tuple[str, ...]
    after: tuple[str, ...] = ()
    intended_at_s: float
    job: str | None = None

    def job_of(self, task: str) -> JobId:
        """Slurm's id of a task's job."""
        if self.job is None:
            raise ValueError(f"{self.name} has no job yet")
        return JobId(self.job, self.tasks.index(task) if len(self.tasks) > 1 else None)


def intend(campaign: Path, stage: str, tasks: Sequence[str], after: Sequence[str]) -> Submission:
    """Writes down an array that is about to be submitted."""
    number = 1 + max((s.number for s in submissions(campaign)), default=-1)
    return write(
        campaign,
        Submission(
            number=number,
            stage=stage,
            name=f"crosspipe-{stage}-{uuid.uuid4().hex[:8]}",
            tasks=tuple(tasks),
            after=tuple(after),
            intended_at_s=time.time(),
        ),
    )


def write(campaign: Path, submission: Submission) -> Submission:
    """Writes an entry, over what it said before."""
    (campaign / FOLDER).mkdir(parents=True, exist_ok=True)
    save(path_of(campaign, submission), submission)
    return submission


def forget(campaign: Path, submission: Submission) -> None:
    """Removes an entry that never became a job; if it did after all, that job finds nothing to do."""
    path_of(campaign, submission).unlink(missing_ok=True)


def path_of(campaign: Path, submission: Submission) -> Path:
    """The file of an entry, as much its alone as its name: an array that nobody knows reads no later one's tasks."""
    unique = submission.name.rpartition("-")[2]
    return campaign / FOLDER / f"{submission.number:03d}-{submission.stage}-{unique}.json"


def submissions(campaign: Path) -> list[Submission]:
    """Every entry, in the order of submission."""
    entries = [load(path, Submission) for path in (campaign / FOLDER).glob("*-*.json")]
    return sorted(entries, key=lambda entry: (entry.number, entry.name))
