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
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from crosspipe.campaign import outcomes
from crosspipe.campaign.cluster import REPORT
from crosspipe.campaign.graph import STAGES
from crosspipe.campaign.outcomes import DRIVER, REPORTED
from crosspipe.campaign.slurm.claims import JobLives
from crosspipe.campaign.slurm.follow import how_held
from crosspipe.campaign.slurm.journal import submissions
from crosspipe.campaign.slurm.queue import Queue, SlurmError
from crosspipe.campaign.slurm.standing import Standing, standings, stuck
from crosspipe.campaign.slurm.submit import cancel_submitted
from crosspipe.campaign.tasks import references_of
from crosspipe.errors import CrosspipeError
from crosspipe.execute.failure import tail
from crosspipe.report.artifacts import load_campaign
from crosspipe.store import Store
from crosspipe.store.campaign_file import Outcome
from crosspipe.store.claims import Claim, holder_lives

_INPUTS = {"solve": ("links", "blocks"), "run": ("blocks", "solve")}


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

    `unheard` is why the scheduler could not be asked, empty where it was: what its jobs do is then not known. `notes`
    are what it said besides: no accounting, jobs that a person holds.
    """

    name: str
    points: int
    stages: tuple[StageStatus, ...]
    troubles: tuple[Trouble, ...]
    followed: bool
    scheduled: bool = False
    unheard: str = ""
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen by itself."""
        return not any(stage.running or (stage.waiting and self.followed) for stage in self.stages)

    @property
    def complete(self) -> bool:
        """Whether every artifact is there."""
        return not any(s.running or s.waiting or s.failed or s.blocked for s in self.stages if s.stage != REPORT)


def campaign_status(directory: Path) -> Status:
    """The status of the campaign in `directory`; ArtifactError if there is none."""
    campaign = load_campaign(directory)
    wanted: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
    for point in campaign.points:
        for stage, key in point.keys.items():
            wanted[stage].setdefault(key, []).append(point.name)
    look = _Look(directory, Store(campaign.store))
    stages, troubles = [], []
    hopeless: dict[tuple[str, str], str] = {}  # point, stage -> why that can never come
    for stage, artifacts in wanted.items():
        counts = dict.fromkeys(("done", "running", "waiting", "failed", "blocked"), 0)
        for key, points in artifacts.items():
            reference = f"{stage}/{key}"
            state, outcome = look.state(reference)
            inputs = [(name, source) for name in points for source in _INPUTS.get(stage, ())]
            why = next((hopeless[one] for one in inputs if one in hopeless), "")
            if state == "waiting" and why:
                state, outcome = "blocked", Outcome(stage=stage, key=key, status="blocked", reason=why)
            elif look.in_vain(reference) and outcome is not None:
                why = f"its input {stage} cannot come: {outcome.reason}"
            if why:
                hopeless |= {(name, stage): why for name in points}
            counts[state] += 1
            if outcome is not None and state in ("failed", "blocked"):
                troubles.append(look.trouble(outcome, points))
        if artifacts:
            stages.append(StageStatus(stage=stage, now=look.now(stage), **counts))
    if look.reports:
        state, outcome = look.state(REPORTED)
        stages.append(StageStatus(stage=REPORT, now=look.now(REPORT), **{state: 1}))
        troubles += [look.trouble(outcome, ["all points"])] if outcome is not None and state == "failed" else []
    return Status(
        name=campaign.name,
        points=len(campaign.points),
        stages=tuple(stages),
        troubles=tuple(troubles),
        followed=look.followed,
        scheduled=bool(look.entries),
        unheard=look.unheard,
        notes=look.notes,
    )


class _Look:
    """One look at a campaign's directory, its store, and Slurm: every file at most once."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory, self.store = directory, store
        self.entries = submissions(directory)
        self.unheard, self._submitted, queue = "", dict[str, Standing](), Queue()
        try:
            if self.entries:
                self._submitted = standings(directory, store, queue, self.entries)
        except SlurmError as error:  # its controller restarts, or this is a laptop with a copy
            self.unheard = str(error)
        self._by_reference = {made: found for found in self._submitted.values() for made in found.references}
        self._said = outcomes.ended(directory)
        arrays = {task for entry in self.entries for task in entry.tasks}
        self._lives = JobLives(None, queue)
        self._others = [job for job in outcomes.read_jobs(directory, arrays) if self._works(job)]
        self._allocations = {job.process.job for job in self._others}
        held = stuck(list(self._submitted.values()))
        self.followed = (
            bool(self.unheard)
            or bool(self._others)
            or (not held and any(not found.failure for found in self._submitted.values()))
        )
        self.notes = (*queue.notes, *map(how_held, held))

    @property
    def reports(self) -> bool:
        """Whether a job writes the report."""
        return any(entry.stage == REPORT for entry in self.entries)

    def _works(self, job: outcomes.JobRecord) -> bool:
        """Whether a job that was not submitted to Slurm, or the driver, works. One elsewhere does while the Slurm job
        that it is in runs, and not all of its artifacts have an outcome; else while the campaign says something."""
        process = job.process
        silent_s = 0.0 if process.host == socket.gethostname() else _silent_s(self.directory)
        if not self._lives(process, silent_s):
            return False
        if process.host == socket.gethostname() or process.job is None or job.task == DRIVER:
            return True
        return not set(references_of(self.directory / "tasks" / f"{job.task}.json")) <= self._said

    def in_vain(self, reference: str) -> bool:
        """Whether the job that is to make it waits for what will never be."""
        found = self._by_reference.get(reference)
        return found is not None and found.state.in_vain

    def state(self, reference: str) -> tuple[str, Outcome | None]:
        """In which state an artifact is, and what was said of how its making ended."""
        if reference != REPORTED and self.store.done(reference) is not None:
            return "done", None
        outcome = outcomes.read_outcome(self.directory, reference) if reference in self._said else None
        found = self._by_reference.get(reference)
        if found is not None and outcome is None:
            return self._of_job(reference, found)
        holder = None if reference == REPORTED else self.store.holder(reference)
        if holder is not None and self._is_ours(holder.claim) and self._lives(holder.claim, holder.silent_s):
            return "running", None
        if outcome is None:
            return "waiting", None
        if outcome.status == "done":  # the report; else done once, and gone from the store since
            return ("done" if reference == REPORTED else "waiting"), None
        return outcome.status, outcome

    def _is_ours(self, claim: Claim) -> bool:
        """Whether it is worth asking if the holder lives: not, where it is another campaign's job in Slurm."""
        return claim.job is None or claim.host == socket.gethostname() or claim.job in self._allocations

    def _of_job(self, reference: str, submitted: Standing) -> tuple[str, Outcome | None]:
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
        running = submitted.state.phase == "running"
        if reference != REPORTED and running:
            holder = self.store.holder(reference)
            running = holder is not None and not holder.claim.released
        return ("running" if running else "waiting"), None

    def trouble(self, outcome: Outcome, points: Sequence[str]) -> Trouble:
        """What a person reads of a failure."""
        log = self.directory / outcome.log if outcome.log else None
        return Trouble(points=tuple(points), outcome=outcome, log=log, last_lines=tail(log, 5) if log else "")

    def now(self, stage: str) -> str:
        """What the jobs of a stage are doing, on Slurm which, where and in which log, and what others wait for."""
        own = {name: found for name, found in self._submitted.items() if name.startswith(f"{stage}-")}
        running = {name: found for name, found in own.items() if found.state.phase == "running"}
        words = [
            *(outcomes.hear_now(self.directory, job.task) for job in self._others if job.task.startswith(f"{stage}-")),
            *(
                f"{found.job} on {found.state.nodes}, {found.log}: {outcomes.hear_now(self.directory, name)}".rstrip(
                    ": "
                )
                for name, found in running.items()
            ),
        ]
        reasons = Counter(found.state.reason or "?" for found in own.values() if found.state.phase == "waiting")
        words += [f"{count} in the queue ({reason})" for reason, count in reasons.items()]
        return "; ".join(filter(None, words))


def _silent_s(directory: Path) -> float:
    """For how long no job of the campaign has begun or said anything: all that is seen of processes elsewhere."""
    return time.time() - max((path.stat().st_mtime for path in (directory / "jobs").iterdir()), default=0.0)


def cancel_campaign(directory: Path, *, grace_s: float = 10.0, say: Callable[[str], None] = lambda text: None) -> int:
    """Ends the driver, every job of this machine and every Slurm job of the campaign; returns how many were ended.

    What is done stays; what was being made is released and made again by the next start. Raises CrosspipeError where
    there is nothing of it here, and processes of another machine may still work on it.
    """
    load_campaign(directory)
    entries = submissions(directory)
    cancelled = cancel_submitted(directory, say) if entries else 0
    arrays = {task for entry in entries for task in entry.tasks}
    others = [job.process for job in outcomes.read_jobs(directory, arrays)]
    living = [process for process in others if process.host == socket.gethostname() and holder_lives(process)]
    if not living and not cancelled:
        _nothing_elsewhere(directory, others)
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(map(holder_lives, living)):
        time.sleep(0.05)
    for process in living:
        _kill(process)
    return cancelled + len(living)


def _nothing_elsewhere(directory: Path, processes: Sequence[Claim]) -> None:
    lives, silent_s = JobLives(None, Queue()), _silent_s(directory) if processes else 0.0
    found = [process for process in processes if lives(process, silent_s)]
    if found and not campaign_status(directory).complete:
        where = ", ".join(sorted({process.host for process in found}))
        jobs = ", ".join(sorted({process.job for process in found if process.job is not None}))
        there = f"cancel it there, or with its Slurm job: scancel {jobs}" if jobs else "cancel it there"
        raise CrosspipeError(f"{directory}: what works on it is on {where}: {there}")


def _kill(process: Claim) -> None:
    """SIGKILL for what is left of a job: it leads a session of its own, and so does the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if holder_lives(process):
            os.kill(process.pid, signal.SIGKILL)
        if process.pid != os.getpgrp():
            os.killpg(process.pid, signal.SIGKILL)
