"""Follows a submitted campaign until it ends: what its jobs say in files, and, ever less often, what Slurm says.

It may be stopped and started at any time: nothing depends on it but what a person sees, and the word about jobs that
died without one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from crosspipe.campaign import outcomes
from crosspipe.campaign.driver import Listener, Plan, Summary
from crosspipe.campaign.outcomes import REPORTED
from crosspipe.campaign.slurm.queue import Queue, SlurmError, cancel
from crosspipe.campaign.slurm.standing import Standing, standings, stuck
from crosspipe.campaign.slurm.states import ENDED
from crosspipe.store import Store
from crosspipe.store.campaign_file import Outcome

_LOOK_S = 1.0  # between looks at the campaign's directory
_ASK_S, _ASK_AT_MOST_S, _GROWTH = 3.0, 60.0, 1.5  # between questions to Slurm: from, to, and by what they grow
_LAG_S = 60.0  # until accounting knows how a job ended
Say = Callable[[str], None]


def follow_campaign(
    plan: Plan, directory: Path, listener: Listener, queue: Queue | None = None, say: Say = lambda text: None
) -> Summary:
    """Hears of every artifact that `plan` misses as it ends; returns when all have, or nothing more will come.

    `say` hears, once, what a person should know besides: no accounting, jobs that are held.
    """
    queue = queue or Queue(say)
    heard: dict[str, Outcome] = {}
    lost: dict[str, float] = {}  # task -> when its job was first seen to be over without a word
    asked_s, pause_s, open_tasks = 0.0, _ASK_S, dict[str, Standing]()
    listener.begin(plan)
    missing = set(plan.missing)
    patience_s = plan.points[0].config.cluster.patience_s
    while True:
        fresh = (outcomes.ended(directory) & missing) - set(heard)
        for reference in sorted(fresh):
            outcome = outcomes.read_outcome(directory, reference)
            if outcome is not None:
                heard[reference] = outcome
                listener.ended(plan.graph.nodes[reference], outcome.status, outcome.reason)
        if missing <= set(heard):
            return Summary(plan, directory, heard)
        for task, standing in open_tasks.items():
            running = standing.state.phase == "running" and standing.references != (REPORTED,)
            text = outcomes.hear_now(directory, task) if running else ""
            if text:
                listener.now(task.partition("-")[0], text)
        if time.monotonic() - asked_s > pause_s:
            pause_s = _ASK_S if fresh else min(pause_s * _GROWTH, _ASK_AT_MOST_S)
            asked_s = time.monotonic()
            try:
                open_tasks = standings(directory, plan.store, queue)
                _bury(directory, open_tasks, lost, patience_s, queue)
            except SlurmError as error:  # its controller restarts: jobs go on without it, and so do we
                for stage in {reference.partition("/")[0] for reference in missing - set(heard)}:
                    listener.now(stage, f"no word from Slurm: {error}")
            else:
                if not open_tasks and not fresh and not (outcomes.ended(directory) & missing) - set(heard):
                    return Summary(plan, directory, heard)  # what is left was never submitted
                waiting = stuck(list(open_tasks.values()))
                if waiting and not fresh and not any(standing.failure for standing in open_tasks.values()):
                    for standing in waiting:
                        say(how_held(standing))
                    return Summary(plan, directory, heard)
        time.sleep(_LOOK_S)


def follow_report(directory: Path, store: Store, patience_s: float, queue: Queue | None = None) -> Outcome | None:
    """How the job that writes the report ended, once it has; None where there is none, or it waits for a person."""
    queue, lost = queue or Queue(), dict[str, float]()
    asked_s, pause_s = time.monotonic(), _ASK_S
    while True:
        outcome = outcomes.read_outcome(directory, REPORTED)
        if outcome is not None:
            return outcome
        if time.monotonic() - asked_s > pause_s:
            asked_s, pause_s = time.monotonic(), min(pause_s * _GROWTH, _ASK_AT_MOST_S)
            with contextlib.suppress(SlurmError):  # its controller restarts
                tasks = standings(directory, store, queue)
                _bury(directory, tasks, lost, patience_s, queue)
                comes = any(standing.references == (REPORTED,) for standing in tasks.values())
                if not comes or stuck(list(tasks.values())):
                    return outcomes.read_outcome(directory, REPORTED)
        time.sleep(_LOOK_S)


def how_held(standing: Standing) -> str:
    """A job that only a person lets go, and how."""
    why = f"({standing.state.reason or standing.state.state})"
    if standing.state.refused:
        return (
            f"job {standing.job} asks for what nobody gets here {why}: it will not start; cancel the campaign, then "
            "run it again with campaign_dir=... and what fits (see `sinfo -o '%P %l %c %m %D'`)"
        )
    return f"job {standing.job} is held {why}: scontrol release {standing.job} lets it go, scancel gives it up"


def _bury(directory: Path, tasks: dict[str, Standing], lost: dict[str, float], patience_s: float, queue: Queue) -> None:
    """Says for jobs that are over how their artifacts ended, after the file system had time to show that they did, and
    accounting to know how."""
    now = time.monotonic()
    cancel([str(standing.job) for standing in tasks.values() if standing.state.in_vain])
    for task, standing in tasks.items():
        known = standing.state.state in ENDED or not queue.accounting
        wait_s = patience_s if known else max(patience_s, _LAG_S)
        if not standing.failure:
            lost.pop(task, None)
        elif standing.state.in_vain or now - lost.setdefault(task, now) >= wait_s:
            for reference in standing.references:
                outcomes.write_outcome(
                    directory, reference, "failed", reason=standing.failure, log=standing.log, job=str(standing.job)
                )
