"""Submits what a campaign lacks, as arrays, and writes down what it did so that it can be killed at any moment.

Called again (another `crosspipe run` or `retry` on the same directory) it looks for what an earlier call left: arrays
that still work are not submitted twice, one that was submitted in the last breath is found by its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from crosspipe.campaign import outcomes
from crosspipe.campaign.cluster import REPORT
from crosspipe.campaign.driver import Plan, first_numbers, plan_tasks, write_campaign
from crosspipe.campaign.outcomes import REPORTED
from crosspipe.campaign.slurm import journal
from crosspipe.campaign.slurm.arrays import Array, arrays
from crosspipe.campaign.slurm.journal import Submission
from crosspipe.campaign.slurm.queue import SKEW_S, Queue, SlurmError, call, cancel, moment, setting
from crosspipe.campaign.slurm.script import command, parameters
from crosspipe.campaign.slurm.standing import Standing, standings
from crosspipe.campaign.tasks import BODIES, Task
from crosspipe.errors import UsageError
from crosspipe.store import Claim, claims, load, my_claim, save
from crosspipe.store.claims import holder_lives

_UNANSWERED = re.compile(r"timed out|unable to contact|response", re.IGNORECASE)  # of sbatch
_SETTLE_S = 5.0  # until what a killed submitter has handed to sbatch is in the queue
_SBATCH_S = 120.0  # no sbatch takes longer
Say = Callable[[str], None]


class Submitted(NamedTuple):
    """What is on its way now: `new` arrays, and the references that earlier ones still make."""

    new: tuple[Submission, ...]
    in_flight: dict[str, str]  # reference -> task


def largest_array() -> int:
    """The site's MaxArraySize; UsageError where Slurm does not answer."""
    try:
        return max(1, int(setting("MaxArraySize") or 1001))
    except SlurmError as error:
        said = str(error).rpartition("scontrol: ")[2]
        remedy = "log in to a node of the cluster, try again later, or use cluster=local"
        raise UsageError("cluster.executor", "slurm", f"Slurm does not answer here ({said})", remedy) from None


def submit_campaign(
    plan: Plan, directory: Path, say: Say, *, bodies: str = BODIES, largest: int | None = None
) -> Submitted:
    """Submits arrays for all that `plan` misses and nobody of this campaign makes already; the last job is the report.

    `largest` is the site's MaxArraySize, asked for if not given, and before anything is written. Raises SlurmError
    where sbatch refuses: what was submitted before stays, and the next call goes on from there.
    """
    largest = largest or largest_array()
    with _only_submitter(directory, say) as at_work:
        _recover(directory, say)
        standing = standings(directory, plan.store, Queue(say))
        in_flight, report = _in_flight(standing), _report_of(standing)
        cancel([str(found.job) for found in standing.values() if found.state.in_vain])
        left = [reference for reference in plan.missing if plan.store.done(reference) is None]  # since it was planned
        missing = [reference for reference in left if reference not in in_flight]
        write_campaign(plan, directory, missing)
        tasks = plan_tasks(plan, directory, bodies=bodies, missing=missing, in_flight=in_flight)
        if tasks or (in_flight and report is None):
            cancel([] if report is None else [report])  # it would not wait for what is new
            outcomes.forget_report(directory)
            tasks = (*tasks, _report_task(directory, tasks, tuple(dict.fromkeys(in_flight.values()))))
        (directory / "logs").mkdir(exist_ok=True)
        for task in tasks:
            save(directory / "tasks" / f"{task.id}.json", task)
        living = _jobs_of(directory, set(in_flight.values()))
        new: list[Submission] = []
        for array in arrays(tasks, largest):
            after = [new[place].job or "" for place in array.after]
            after += [living[name] for task in array.tasks for name in task.after if name in living]
            say(f"submitting {array.stage}: {_count(len(array.tasks), 'job')}")
            at_work()
            if array.tasks[0].resources.at_once:  # no more at once than that, those of earlier calls among them
                after += [job for name, job in living.items() if name.startswith(f"{array.stage}-")]
            new.append(_submit(directory, array, list(dict.fromkeys(after))))
        return Submitted(tuple(new), in_flight)


@contextlib.contextmanager
def _only_submitter(directory: Path, say: Say) -> Iterator[Callable[[], None]]:
    """One process submits for a campaign at a time; another waits until that is through. Yields what says: I work."""
    place, mine = directory / journal.FOLDER, my_claim()
    place.mkdir(parents=True, exist_ok=True)
    told = False
    while (holder := claims.take(place, mine, _submits)).token != mine.token:
        if not told:
            say(f"process {holder.pid} on {holder.host} is submitting for {directory}: waiting")
            told = True
        time.sleep(0.5)
    try:
        yield lambda: claims.touch(place, mine)
    finally:
        held = claims.current(place)
        if held is not None and held.claim.token == mine.token:
            claims.clear(place)


def _submits(claim: Claim, silent_s: float) -> bool:
    """Whether another submitter works: on another login node, if it has touched its claim before its latest sbatch."""
    near = claim.host == socket.gethostname()
    return holder_lives(claim, silent_s) and (near or silent_s < _SBATCH_S)


def cancel_submitted(directory: Path, say: Say) -> int:
    """Cancels every job of the campaign that still waits or runs; returns how many arrays that were.

    Whoever is submitting for it is let through first, so that nothing comes after.
    """
    with _only_submitter(directory, say):
        _recover(directory, say)
        entries = journal.submissions(directory)
        living = Queue().living({entry.job: entry.intended_at_s for entry in entries if entry.job is not None})
        cancel(living)
        return len(living)


def _submit(directory: Path, array: Array, after: Sequence[str]) -> Submission:
    """One array. Where sbatch fails its entry stays: a failure to answer is no proof that there is no job, and the next
    call looks for one by its name."""
    entry = journal.intend(directory, array.stage, [task.id for task in array.tasks], after)
    logs, path = directory.resolve() / "logs", journal.path_of(directory.resolve(), entry)
    try:
        job = _sbatch(array, entry, logs, path)
    except SlurmError as error:
        unanswered = _UNANSWERED.search(str(error)) is not None  # then there may be a job all the same
        for reference in [] if unanswered else [made for task in array.tasks for made in task.references]:
            outcomes.write_outcome(directory, reference, "failed", reason=str(error))
        before = "; what was submitted before goes on" if entry.after else ""
        raise SlurmError(
            f"{error}; change cluster.resources.{array.stage} and run it again with campaign_dir={directory}{before}"
        ) from None
    return journal.write(directory, msgspec.structs.replace(entry, job=job))


def _sbatch(array: Array, entry: Submission, logs: Path, path: Path) -> str:
    """One sbatch call, by submitit, without its pickles: a job finds its task by its place in the journal's entry."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = submitit.SlurmExecutor(folder=logs)
        given = parameters(array.resources, entry.name, entry.after, logs=logs, count=len(array.tasks))
        executor.update_parameters(**given)
        if len(array.tasks) > 1:
            executor.parameters["map_count"] = len(array.tasks)
        with _outside_of_jobs():
            return str(executor._submit_command(command(path)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        said = "; ".join(dict.fromkeys(re.findall(r"sbatch: error: (.+)", str(error)))) or " ".join(str(error).split())
        raise SlurmError(f"sbatch refused {array.stage} ({_count(len(array.tasks), 'job')}): {said}") from None
    except RuntimeError as error:
        raise SlurmError(str(error)) from None


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Without the variables of the job this may run in: sbatch would take some for options that exclude each other.
    Nor with a choice of clusters: we ask the one that answers here."""
    kept = dict(os.environ)
    for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
        os.environ.pop(name, None)
    if "SLURM_JOB_ID" in kept:
        for name in kept:
            if name.startswith("SLURM_") and name != "SLURM_CONF":
                os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.update(kept)


def _recover(directory: Path, say: Say) -> None:
    """Entries without a number, of a submitter that was killed or got no answer: found in the queue by name, or taken
    for never made."""
    lost = [entry for entry in journal.submissions(directory) if entry.job is None]
    if not lost:
        return
    time.sleep(min(_SETTLE_S, max(0.0, _SETTLE_S - (time.time() - lost[-1].intended_at_s))))  # clocks differ
    names = ",".join(entry.name for entry in lost)
    said = call(["squeue", "--noheader", "--states=all", f"--name={names}", "--format=%j|%F"])
    since = f"--starttime={moment(min(entry.intended_at_s for entry in lost) - SKEW_S)}"
    with contextlib.suppress(SlurmError):  # no accounting
        asked = ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={names}", since]
        said += call([*asked, "--format=JobName,JobID"])
    known = dict(line.split("|", 1) for line in said.splitlines())
    for entry in lost:
        if entry.name in known:
            number = known[entry.name].partition("_")[0]
            say(f"job {number} ({entry.stage}) was submitted by a call that heard no answer: it is this campaign's")
            journal.write(directory, msgspec.structs.replace(entry, job=number))
        else:
            journal.forget(directory, entry)


def _in_flight(tasks: Mapping[str, Standing]) -> dict[str, str]:
    """What living jobs will still make, and which task makes it."""
    living = [(task, standing) for task, standing in tasks.items() if not standing.failure]
    return {made: task for task, standing in living for made in standing.references if made != REPORTED}


def _report_of(tasks: Mapping[str, Standing]) -> str | None:
    """The job that will still write the report."""
    jobs = [str(s.job) for s in tasks.values() if s.references == (REPORTED,) and not s.failure]
    return jobs[0] if jobs else None


def _jobs_of(directory: Path, tasks: Collection[str]) -> dict[str, str]:
    """The array of each of `tasks`."""
    return {task: entry.job or "" for entry in journal.submissions(directory) for task in entry.tasks if task in tasks}


def _report_task(directory: Path, tasks: Sequence[Task], in_flight: Sequence[str]) -> Task:
    like = tasks[-1] if tasks else load(directory / "tasks" / f"{in_flight[-1]}.json", Task)
    return msgspec.structs.replace(
        like,
        id=f"{REPORT}-{first_numbers(directory).get(REPORT, 0):03d}",
        stage=REPORT,
        requests=(),
        after=(*(task.id for task in tasks), *in_flight),
        settings={},
        names={},
        site_of_rank=(),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
