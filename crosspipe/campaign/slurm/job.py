"""One job of an array: `python -m crosspipe.campaign.slurm.job SUBMISSION.json` makes the task of its place there.

Around the body that every machine shares: Slurm's warning before the time limit (or a preemption with grace), after
which what is finished stays and the job goes on in another life; and the word of who else still works.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from crosspipe.campaign.cluster import REPORT
from crosspipe.campaign.job import cancellable, myself, run_task
from crosspipe.campaign.outcomes import JobRecord, read_outcome, write_job, write_outcome
from crosspipe.campaign.slurm.journal import Submission
from crosspipe.campaign.slurm.queue import SlurmError, call
from crosspipe.campaign.slurm.script import SIGNAL
from crosspipe.campaign.tasks import Task
from crosspipe.campaign.unfinished import states
from crosspipe.store import Store, load

_EARLY_S = 60.0  # Slurm may warn by so much too early


class Warned(BaseException):
    """Slurm will end this job soon. Not an Exception: no body may take it for a failure of its own."""


def main(submission: Path) -> None:
    """Runs the task of this job's place in the array."""
    campaign = submission.parents[1]
    if not submission.exists():
        print(f"{submission}: is no longer wanted: it was taken for never submitted", flush=True)
        return
    place = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    path = campaign / "tasks" / f"{load(submission, Submission).tasks[place]}.json"
    task = load(path, Task)
    if task.stage == REPORT:
        from crosspipe.campaign.reporting import report_of_job  # polars and what draws, for this job alone

        me = myself()
        write_job(campaign, JobRecord(task=task.id, job=str(me), process=me.claim(), log=me.log))
        report_of_job(task, me)
        return
    began_s, before = time.monotonic(), _done(task)
    kept = states(campaign, task.references)
    try:
        with _warned():
            run_task(path, _taken_back)
    except Warned:
        done, fresh = _done(task) - before, states(campaign, task.references) - kept
        print(f"warned by Slurm: {done} artifacts are done, {len(fresh)} runs were kept on their way", flush=True)
        _go_on_later(task, progress=bool(done or fresh), spent_s=time.monotonic() - began_s)


def _go_on_later(task: Task, *, progress: bool, spent_s: float) -> None:
    """Another life for what is left; or its failure, where a whole life up to the time limit brought it no further."""
    resources = task.resources
    at_limit = spent_s > resources.minutes * 60 - resources.warning_s - 2 * _EARLY_S
    if resources.requeue and (progress or not at_limit or _others_work(task)):
        print(f"after {spent_s:.0f} s the rest is left to another life of this job", flush=True)
        try:
            call(["scontrol", "requeue", str(myself())])
        except SlurmError as error:
            _fail(task, f"the time limit or a preemption came, and it could not be requeued: {error}")
        return
    limit = f"the time limit of {resources.minutes} min came first; raise cluster.resources.{task.stage}.minutes"
    why = limit if at_limit else f"it was preempted, and cluster.resources.{task.stage}.requeue is off"
    _fail(task, why)


def _others_work(task: Task) -> bool:
    """Whether all that is left is being made by others: this job has only waited for them."""
    store = Store(task.store)
    holders = [store.holder(reference) for reference in task.references if store.done(reference) is None]
    return all(holder is not None and not holder.claim.released for holder in holders)


def _fail(task: Task, why: str) -> None:
    """Says for all that is left of the task that it failed."""
    me = myself()
    for reference in task.references:
        if Store(task.store).done(reference) is None and read_outcome(Path(task.campaign), reference) is None:
            write_outcome(Path(task.campaign), reference, "failed", reason=why, log=me.log, job=str(me))


def _taken_back() -> None:
    """Ends this life of the job where Slurm has taken it back: then its ranks were ended, and nothing has failed.

    A preemption with grace ends ranks long before this process (Warned: it requeues itself at once); a job that lost a
    node, or was requeued, no longer runs as far as Slurm knows.
    """
    with contextlib.suppress(SlurmError):
        said = call(["scontrol", "--oneliner", "show", "job", str(myself())])
        now = dict(re.findall(r"\b(JobState|Restarts|StartTime|PreemptTime)=(\S+)", said))
        lives = os.environ.get("SLURM_RESTART_COUNT", "0")
        if now.get("JobState", "RUNNING") != "RUNNING" or now.get("Restarts", lives) != lives:
            raise SystemExit(1)
        # within the second of its start too; the preemption of an earlier life lies before that
        if now.get("PreemptTime", "None") != "None" and now["PreemptTime"] >= now.get("StartTime", ""):
            raise Warned


def _done(task: Task) -> int:
    store = Store(task.store)
    return sum(store.done(reference) is not None for reference in task.references)


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Slurm's warning raises Warned, once."""

    def warn(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Warned

    number = signal.Signals[f"SIG{SIGNAL}"]
    signal.signal(number, warn)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    cancellable()
    main(Path(sys.argv[1]).resolve())
