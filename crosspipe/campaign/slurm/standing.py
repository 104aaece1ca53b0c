"""Where the submitted tasks of a campaign stand: the journal, the outcomes and Slurm's word, put together.

Slurm is asked only for jobs of tasks that have not said how all their artifacts ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from crosspipe.campaign import outcomes
from crosspipe.campaign.slurm import journal
from crosspipe.campaign.slurm.queue import JobState, Queue, cancel
from crosspipe.campaign.slurm.states import JobId
from crosspipe.campaign.tasks import Task
from crosspipe.store import Store, load


class Standing(NamedTuple):
    """A task that is not through: its job, what Slurm says of it, and the artifacts without an outcome."""

    job: JobId
    state: JobState
    references: tuple[str, ...]

    @property
    def failure(self) -> str:
        """Why nothing will come of it, in words; empty while something may."""
        if self.state.in_vain:
            return f"its job {self.job} waits for what will never be ({self.state.reason})"
        return f"its job {self.job} {self.state.how()}" if self.state.phase == "ended" else ""

    @property
    def log(self) -> str:
        """The job's output, relative to the campaign's directory."""
        return f"logs/{self.job}_0_log.out"


def cancel_jobs(directory: Path, queue: Queue) -> int:
    """Cancels every job of the campaign that still waits or runs; returns how many arrays that were."""
    entries = journal.submissions(directory)
    living = queue.living({entry.job: entry.intended_at_s for entry in entries if entry.job is not None})
    cancel(living)
    for entry in entries:
        if entry.job is None:  # sbatch gave no answer: there may be a job of its name
            cancel([f"--name={entry.name}"])
    return len(living)


def standings(directory: Path, store: Store, queue: Queue) -> dict[str, Standing]:
    """Every submitted task that is not through. An artifact belongs to the task that was submitted for it last."""
    last: dict[str, tuple[str, JobId]] = {}
    submitted: dict[str, float] = {}
    for entry in journal.submissions(directory):
        if entry.job is None:
            continue
        submitted[entry.job] = entry.intended_at_s
        for name in entry.tasks:
            task = load(directory / "tasks" / f"{name}.json", Task)
            last |= dict.fromkeys(task.references, (name, entry.job_of(name)))
    unsaid: dict[tuple[str, JobId], list[str]] = {}
    for reference, job in last.items():
        if outcomes.read_outcome(directory, reference) is None and store.done(reference) is None:
            unsaid.setdefault(job, []).append(reference)
    states = queue.states(submitted, [job for _, job in unsaid])
    return {name: Standing(job, states[job], tuple(references)) for (name, job), references in unsaid.items()}
