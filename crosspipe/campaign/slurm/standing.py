"""Where the submitted tasks of a campaign stand: the journal, the outcomes and Slurm's word, put together.

Slurm is asked only for jobs of tasks that have not said how all their artifacts ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crosspipe.campaign import outcomes
from crosspipe.campaign.cluster import REPORT
from crosspipe.campaign.outcomes import REPORTED
from crosspipe.campaign.slurm.journal import Submission, submissions
from crosspipe.campaign.slurm.queue import JobState, Queue
from crosspipe.campaign.slurm.states import JobId
from crosspipe.campaign.tasks import references_of
from crosspipe.store import Store


class Standing(NamedTuple):
    """A task that is not through: its job, what Slurm says of it, and the artifacts without an outcome.

    That of the report's job is `outcomes.REPORTED`.
    """

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


def standings(
    directory: Path, store: Store, queue: Queue, entries: Sequence[Submission] | None = None
) -> dict[str, Standing]:
    """Every submitted task that is not through. An artifact belongs to the task that was submitted for it last.

    `entries` is the journal, if that was read already.
    """
    last: dict[str, tuple[str, JobId]] = {}
    submitted: dict[str, float] = {}
    for entry in submissions(directory) if entries is None else entries:
        if entry.job is None:
            continue
        submitted[entry.job] = entry.intended_at_s
        for name in entry.tasks:
            made = (REPORTED,) if entry.stage == REPORT else references_of(directory / "tasks" / f"{name}.json")
            last |= dict.fromkeys(made, (name, entry.job_of(name)))
    said = outcomes.ended(directory)
    unsaid: dict[tuple[str, JobId], list[str]] = {}
    for reference, job in last.items():
        if reference not in said and store.done(reference) is None:
            unsaid.setdefault(job, []).append(reference)
    states = queue.states(submitted, [job for _, job in unsaid])
    return {name: Standing(job, states[job], tuple(references)) for (name, job), references in unsaid.items()}


def stuck(tasks: Sequence[Standing]) -> list[Standing]:
    """The jobs that start only if a person acts, where nothing else happens: the others wait for them, or are over."""
    held = [standing for standing in tasks if standing.state.held or standing.state.refused]
    rest = (standing for standing in tasks if standing not in held)
    return held if all(standing.failure or standing.state.reason == "Dependency" for standing in rest) else []
