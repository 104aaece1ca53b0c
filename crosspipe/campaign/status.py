"""Where a campaign stands, told from its directory and the store; and how to end it.

What is done stands in the store, what is being made in the claims; only of jobs that have not said how they ended a
scheduler is asked, in one call.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from crosspipe.campaign import outcomes
from crosspipe.campaign.graph import STAGES
from crosspipe.campaign.outcomes import DRIVER
from crosspipe.campaign.processes import tail
from crosspipe.campaign.slurm.journal import submissions
from crosspipe.campaign.slurm.queue import Queue, SlurmError
from crosspipe.campaign.slurm.standing import Standing, cancel_jobs, standings
from crosspipe.errors import CrosspipeError
from crosspipe.report.artifacts import load_campaign
from crosspipe.store import Store
from crosspipe.store.campaign_file import Outcome
from crosspipe.store.claims import Claim, holder_lives


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How many artifacts of a stage are in which state; `now` says what its jobs are doing."""

    stage: str
    done: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    blocked: int = 0
    now: str = ""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that failed or is blocked, the points that want it, and the end of the log that tells why."""

    points: tuple[str, ...]
    outcome: Outcome
    log: Path | None
    last_lines: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign, now. `followed` says whether something still works on it; `scheduled` whether a scheduler does.

    `unheard` is why the scheduler could not be asked, empty where it was: what its jobs do is then not known.
    """

    name: str
    points: int
    stages: tuple[StageStatus, ...]
    troubles: tuple[Trouble, ...]
    followed: bool
    scheduled: bool = False
    unheard: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen by itself."""
        return not any(stage.running or (stage.waiting and self.followed) for stage in self.stages)

    @property
    def complete(self) -> bool:
        """Whether everything is there."""
        return not any(s.running or s.waiting or s.failed or s.blocked for s in self.stages)


def campaign_status(directory: Path) -> Status:
    """The status of the campaign in `directory`; ArtifactError if there is none."""
    campaign = load_campaign(directory)
    store = Store(campaign.store)
    wanted: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
    for point in campaign.points:
        for stage, key in point.keys.items():
            wanted[stage].setdefault(key, []).append(point.name)
    submitted, unheard = _submitted(directory, store)
    by_reference = {reference: found for found in submitted.values() for reference in found.references}
    jobs = [job for job in outcomes.read_jobs(directory) if _works(directory, job, submitted)]
    stages, troubles = [], []
    for stage, artifacts in wanted.items():
        counts = dict.fromkeys(("done", "running", "waiting", "failed", "blocked"), 0)
        for key, points in artifacts.items():
            reference = f"{stage}/{key}"
            state, outcome = _state(store, directory, reference, by_reference.get(reference))
            counts[state] += 1
            if outcome is not None and state in ("failed", "blocked"):
                log = directory / outcome.log if outcome.log else None
                lines = tail(log, 5) if log else ""
                troubles.append(Trouble(points=tuple(points), outcome=outcome, log=log, last_lines=lines))
        if artifacts:
            now = [_now(directory, job, submitted) for job in jobs if job.task.startswith(f"{stage}-")]
            waits = _waits(found for name, found in submitted.items() if name.startswith(f"{stage}-"))
            stages.append(StageStatus(stage=stage, now="; ".join(filter(None, (*now, waits))), **counts))
    return Status(
        name=campaign.name,
        points=len(campaign.points),
        stages=tuple(stages),
        troubles=tuple(troubles),
        followed=bool(unheard)
        or any(job.task == DRIVER for job in jobs)
        or any(not found.failure for found in submitted.values()),
        scheduled=bool(submissions(directory)),
        unheard=unheard,
    )


def _submitted(directory: Path, store: Store) -> tuple[dict[str, Standing], str]:
    """What was submitted to Slurm and is not through, by task, or why Slurm does not say."""
    if not submissions(directory):
        return {}, ""
    try:
        return standings(directory, store, Queue()), ""
    except SlurmError as error:  # its controller restarts, or this is a laptop with a copy
        return {}, str(error)


def _works(directory: Path, job: outcomes.JobRecord, submitted: Mapping[str, Standing]) -> bool:
    if job.process.job is None:
        return holder_lives(job.process, _silent_s(directory))
    return job.task in submitted and submitted[job.task].state.phase == "running"


def _silent_s(directory: Path) -> float:
    """For how long no job of the campaign has begun or said anything: all that is seen of processes elsewhere."""
    return time.time() - max((path.stat().st_mtime for path in (directory / "jobs").iterdir()), default=0.0)


def _now(directory: Path, job: outcomes.JobRecord, submitted: Mapping[str, Standing]) -> str:
    """What a job is doing, and on a cluster which job and where."""
    text = outcomes.hear_now(directory, job.task)
    found = submitted.get(job.task)
    return text if found is None else f"{found.job} on {found.state.nodes}: {text}"


def _waits(found: Iterable[Standing]) -> str:
    """How many jobs wait in the queue, and for what."""
    reasons = Counter(standing.state.reason or "?" for standing in found if standing.state.phase == "waiting")
    return "; ".join(f"{count} in the queue ({reason})" for reason, count in reasons.items())


def _state(store: Store, directory: Path, reference: str, submitted: Standing | None) -> tuple[str, Outcome | None]:
    if store.done(reference) is not None:
        return "done", None
    outcome = outcomes.read_outcome(directory, reference)
    if submitted is not None and outcome is None:
        return _of_job(store, reference, submitted)
    holder = store.holder(reference)
    if holder is not None and holder.claim.job is None and holder_lives(holder.claim, holder.silent_s):
        return "running", None
    if outcome is None or outcome.status == "done":  # done once, and gone from the store since
        return "waiting", None
    return outcome.status, outcome


def _of_job(store: Store, reference: str, submitted: Standing) -> tuple[str, Outcome | None]:
    """The state of an artifact that a Slurm job has not said a word about."""
    if submitted.failure:
        stage, key = reference.split("/")
        return "failed", Outcome(
            stage=stage,
            key=key,
            status="failed",
            reason=submitted.failure,
            log=submitted.log,
            job=str(submitted.job),
        )
    holder = store.holder(reference)
    begun = holder is not None and not holder.claim.released
    return ("running" if begun and submitted.state.phase == "running" else "waiting"), None


def cancel_campaign(directory: Path, *, grace_s: float = 10.0) -> int:
    """Ends the driver, every job of this machine and every Slurm job of the campaign; returns how many were ended.

    What is done stays; what was being made is released and made again by the next start. Raises CrosspipeError where
    there is nothing of it here, and processes of another machine may still work on it.
    """
    load_campaign(directory)
    cancelled = cancel_jobs(directory, Queue()) if submissions(directory) else 0
    here = [
        job.process
        for job in outcomes.read_jobs(directory)
        if job.process.job is None and job.process.host == socket.gethostname()
    ]
    living = [process for process in here if holder_lives(process)]
    if not living and not cancelled:
        _nothing_elsewhere(directory)
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(map(holder_lives, living)):
        time.sleep(0.05)
    for process in living:
        _kill(process)
    return cancelled + len(living)


def _nothing_elsewhere(directory: Path) -> None:
    found = [job.process for job in outcomes.read_jobs(directory) if _works(directory, job, {})]
    hosts = sorted({process.host for process in found if process.job is None})
    if hosts and not campaign_status(directory).complete:
        where = ", ".join(hosts)
        raise CrosspipeError(f"{directory}: what works on it is on {where}: cancel it there, or the Slurm job it is in")


def _kill(process: Claim) -> None:
    """SIGKILL for what is left of a job: it leads a session of its own, and so does the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if holder_lives(process):
            os.kill(process.pid, signal.SIGKILL)
        if process.pid != os.getpgrp():
            os.killpg(process.pid, signal.SIGKILL)
