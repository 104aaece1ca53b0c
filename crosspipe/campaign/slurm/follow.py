"""Follows a submitted campaign until it ends: what its jobs say in files, and, ever less often, what Slurm says.

It may be stopped and started at any time: nothing depends on it but what a person sees, and the word about jobs that
died without one.
"""

from __future__ import annotations

import time
from pathlib import Path

from crosspipe.campaign import outcomes
from crosspipe.campaign.driver import Listener, Plan, Summary
from crosspipe.campaign.slurm.queue import Queue, SlurmError, cancel
from crosspipe.campaign.slurm.standing import Standing, standings
from crosspipe.store.campaign_file import Outcome

_LOOK_S = 1.0  # between looks at the campaign's directory
_ASK_S, _ASK_AT_MOST_S, _GROWTH = 3.0, 60.0, 1.5  # between questions to Slurm: from, to, and by what they grow


def follow_campaign(plan: Plan, directory: Path, listener: Listener, queue: Queue | None = None) -> Summary:
    """Hears of every artifact that `plan` misses as it ends; returns when all have, or nothing more will come."""
    queue = queue or Queue()
    heard: dict[str, Outcome] = {}
    lost: dict[str, float] = {}  # task -> when its job was first seen to be over without a word
    asked_s, pause_s, open_tasks = 0.0, _ASK_S, dict[str, Standing]()
    listener.begin(plan)
    missing = set(plan.missing)
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
            text = outcomes.hear_now(directory, task) if standing.state.phase == "running" else ""
            if text:
                listener.now(task.partition("-")[0], text)
        if time.monotonic() - asked_s > pause_s:
            pause_s = _ASK_S if fresh else min(pause_s * _GROWTH, _ASK_AT_MOST_S)
            asked_s = time.monotonic()
            try:
                open_tasks = standings(directory, plan.store, queue)
                _bury(directory, open_tasks, lost, plan.points[0].config.cluster.patience_s)
            except SlurmError as error:  # its controller restarts: jobs go on without it, and so do we
                for stage in {reference.partition("/")[0] for reference in missing - set(heard)}:
                    listener.now(stage, f"no word from Slurm: {error}")
            else:
                if not open_tasks and not fresh and not (outcomes.ended(directory) & missing) - set(heard):
                    return Summary(plan, directory, heard)  # what is left was never submitted
        time.sleep(_LOOK_S)


def _bury(directory: Path, tasks: dict[str, Standing], lost: dict[str, float], patience_s: float) -> None:
    """Says for jobs that are over how their artifacts ended, after the file system had time to show that they did."""
    now = time.monotonic()
    cancel([str(standing.job) for standing in tasks.values() if standing.state.in_vain])
    for task, standing in tasks.items():
        if not standing.failure:
            lost.pop(task, None)
        elif standing.state.in_vain or now - lost.setdefault(task, now) >= patience_s:
            for reference in standing.references:
                outcomes.write_outcome(
                    directory, reference, "failed", reason=standing.failure, log=standing.log, job=str(standing.job)
                )
