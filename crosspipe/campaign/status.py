"""Where a campaign stands, told from its directory and the store alone; and how to end it.

Nothing is asked of a scheduler: what is done stands in the store, what is being made in the claims.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import msgspec

from crosspipe.campaign import outcomes
from crosspipe.campaign.graph import STAGES
from crosspipe.campaign.processes import tail
from crosspipe.store import Store, load
from crosspipe.store.campaign_file import CAMPAIGN_FILE, CampaignFile, Outcome
from crosspipe.store.claims import Claim, holder_lives

DRIVER = "driver"  # the task name of whoever submits and follows


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
    """A campaign, now. `followed` says whether its driver lives."""

    name: str
    points: int
    stages: tuple[StageStatus, ...]
    troubles: tuple[Trouble, ...]
    followed: bool

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
    campaign = load(directory / CAMPAIGN_FILE, CampaignFile)
    store = Store(campaign.store)
    wanted: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
    for point in campaign.points:
        for stage, key in point.keys.items():
            wanted[stage].setdefault(key, []).append(point.name)
    jobs = [job for job in outcomes.read_jobs(directory) if holder_lives(job.process)]
    stages, troubles = [], []
    for stage, artifacts in wanted.items():
        counts = dict.fromkeys(("done", "running", "waiting", "failed", "blocked"), 0)
        for key, points in artifacts.items():
            state, outcome = _state(store, directory, f"{stage}/{key}")
            counts[state] += 1
            if outcome is not None and state in ("failed", "blocked"):
                log = directory / outcome.log if outcome.log else None
                lines = tail(log, 5) if log else ""
                troubles.append(Trouble(points=tuple(points), outcome=outcome, log=log, last_lines=lines))
        if artifacts:
            now = [outcomes.hear_now(directory, job.task) for job in jobs if job.task.startswith(f"{stage}-")]
            stages.append(StageStatus(stage=stage, now="; ".join(filter(None, now)), **counts))
    return Status(
        name=campaign.name,
        points=len(campaign.points),
        stages=tuple(stages),
        troubles=tuple(troubles),
        followed=any(job.task == DRIVER for job in jobs),
    )


def _state(store: Store, directory: Path, reference: str) -> tuple[str, Outcome | None]:
    if store.done(reference) is not None:
        return "done", None
    holder = store.holder(reference)
    if holder is not None and holder_lives(holder.claim, holder.silent_s):
        return "running", None
    outcome = outcomes.read_outcome(directory, reference)
    if outcome is None or outcome.status == "done":  # done once, and gone from the store since
        return "waiting", None
    return outcome.status, outcome


def cancel_campaign(directory: Path, *, grace_s: float = 10.0) -> int:
    """Ends the driver and every job of this machine that works for the campaign; returns how many were ended.

    What is done stays; what was being made is released and made again by the next start.
    """
    load(directory / CAMPAIGN_FILE, CampaignFile)
    here = [j.process for j in outcomes.read_jobs(directory) if j.process.host == socket.gethostname()]
    living = [process for process in here if holder_lives(process)]
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(map(holder_lives, living)):
        time.sleep(0.05)
    for process in living:
        _kill(process)
    return len(living)


def _kill(process: Claim) -> None:
    """SIGKILL for what is left of a job: it leads a session of its own, and so does the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if holder_lives(process):
            os.kill(process.pid, signal.SIGKILL)
        if process.pid != os.getpgrp():
            os.killpg(process.pid, signal.SIGKILL)
