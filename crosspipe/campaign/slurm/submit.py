"""Submits what a campaign lacks, as arrays, and writes down what it did so that it can be killed at any moment.

Called again (another `crosspipe run` or `retry` on the same directory) it looks for what an earlier call left: arrays
that still work are not submitted twice, one that was submitted in the last breath is found by its name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from crosspipe.campaign.cluster import REPORT
from crosspipe.campaign.driver import Plan, first_numbers, plan_tasks, write_campaign
from crosspipe.campaign.slurm import journal
from crosspipe.campaign.slurm.arrays import Array, arrays
from crosspipe.campaign.slurm.journal import Submission
from crosspipe.campaign.slurm.queue import Queue, SlurmError, call, cancel, setting
from crosspipe.campaign.slurm.script import command, parameters
from crosspipe.campaign.slurm.standing import standings
from crosspipe.campaign.tasks import BODIES, Task
from crosspipe.errors import CrosspipeError
from crosspipe.store import Store, claims, my_claim, save

_SETTLE_S = 5.0  # until what a killed submitter has handed to sbatch is in the queue
Say = Callable[[str], None]


class Submitted(NamedTuple):
    """What is on its way now: `new` arrays, and the references that earlier ones still make."""

    new: tuple[Submission, ...]
    in_flight: dict[str, str]  # reference -> task


def submit_campaign(plan: Plan, directory: Path, say: Say, *, bodies: str = BODIES) -> Submitted:
    """Submits arrays for all that `plan` misses and nobody of this campaign makes already; the last job is the report.

    Raises SlurmError where sbatch refuses: what was submitted before stays, and the next call goes on from there.
    """
    with _only_submitter(directory, say):
        queue = Queue()
        _recover(directory, say)
        in_flight, useless = _in_flight(directory, plan.store, queue)
        cancel(useless)
        left = [reference for reference in plan.missing if plan.store.done(reference) is None]  # since it was planned
        missing = [reference for reference in left if reference not in in_flight]
        write_campaign(plan, directory, missing)
        tasks = plan_tasks(plan, directory, bodies=bodies, missing=missing, in_flight=in_flight)
        if tasks and plan.points[0].config.until != "profile":
            tasks = (*tasks, _report_task(directory, tasks, dict.fromkeys(in_flight.values())))
        (directory / "logs").mkdir(exist_ok=True)
        for task in tasks:
            save(directory / "tasks" / f"{task.id}.json", task)
        largest = max(1, int(setting("MaxArraySize") or 1001)) if tasks else 1
        living = _jobs_of(directory, set(in_flight.values()))
        new: list[Submission] = []
        for array in arrays(tasks, largest):
            after = [new[place].job or "" for place in array.after]
            after += [living[name] for task in array.tasks for name in task.after if name in living]
            say(f"submitting {array.stage}: {_count(len(array.tasks), 'job')}")
            new.append(_submit(directory, array, list(dict.fromkeys(after))))
        return Submitted(tuple(new), in_flight)


@contextlib.contextmanager
def _only_submitter(directory: Path, say: Say) -> Iterator[None]:
    """One process submits for a campaign at a time; another waits until that is through."""
    place, mine = directory / journal.FOLDER, my_claim()
    place.mkdir(parents=True, exist_ok=True)
    told = False
    while (holder := claims.take(place, mine)).token != mine.token:
        if not told:
            say(f"process {holder.pid} on {holder.host} is submitting for {directory}: waiting")
            told = True
        time.sleep(0.5)
    try:
        yield
    finally:
        claims.clear(place)


def _submit(directory: Path, array: Array, after: Sequence[str]) -> Submission:
    entry = journal.intend(directory, array.stage, [task.id for task in array.tasks], after)
    logs, path = directory.resolve() / "logs", journal.path_of(directory.resolve(), entry)
    try:
        job = _sbatch(array, entry, logs, path)
    except CrosspipeError:
        journal.forget(directory, entry)
        raise
    return journal.write(directory, msgspec.structs.replace(entry, job=job))


def _sbatch(array: Array, entry: Submission, logs: Path, path: Path) -> str:
    """One sbatch call, by submitit, without its pickles: a job finds its task by its place in the journal's entry."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = submitit.SlurmExecutor(folder=logs)
        executor.update_parameters(
            **{"array_parallelism": len(array.tasks), **parameters(array.resources, entry.name, entry.after)}
        )
        if len(array.tasks) > 1:
            executor.parameters["map_count"] = len(array.tasks)
        with _outside_of_jobs():
            return str(executor._submit_command(command(path)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        said = " ".join(str(error).split())
        raise SlurmError(f"sbatch refused {array.stage} ({_count(len(array.tasks), 'job')}): {said}") from None
    except RuntimeError as error:
        raise SlurmError(str(error)) from None


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Without the variables of the job this may run in: sbatch would take some for options that exclude each other."""
    kept = dict(os.environ)
    if "SLURM_JOB_ID" in kept:
        for name in kept:
            if name.startswith("SLURM_") and name != "SLURM_CONF":
                del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def _recover(directory: Path, say: Say) -> None:
    """Entries without a number, of a submitter that was killed: found in the queue by name, or taken for never made."""
    lost = [entry for entry in journal.submissions(directory) if entry.job is None]
    if not lost:
        return
    time.sleep(max(0.0, _SETTLE_S - (time.time() - lost[-1].intended_at_s)))
    names = ",".join(entry.name for entry in lost)
    said = call(["squeue", "--noheader", "--states=all", f"--name={names}", "--format=%j|%F"])
    with contextlib.suppress(SlurmError):  # no accounting
        said += call(
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={names}", "--format=JobName,JobID"]
        )
    known = dict(line.split("|", 1) for line in said.splitlines())
    for entry in lost:
        if entry.name in known:
            number = known[entry.name].partition("_")[0]
            say(f"job {number} ({entry.stage}) was submitted by a process that was killed: it is this campaign's")
            journal.write(directory, msgspec.structs.replace(entry, job=number))
        else:
            journal.forget(directory, entry)


def _in_flight(directory: Path, store: Store, queue: Queue) -> tuple[dict[str, str], list[str]]:
    """What living jobs will still make (reference -> task), and the jobs that wait in vain."""
    making: dict[str, str] = {}
    useless: list[str] = []
    for task, standing in standings(directory, store, queue).items():
        if standing.state.in_vain:
            useless.append(str(standing.job))
        elif standing.state.phase != "ended":
            making |= dict.fromkeys(standing.references, task)
    return making, useless


def _jobs_of(directory: Path, tasks: Collection[str]) -> dict[str, str]:
    """The array of each of `tasks`."""
    return {task: entry.job or "" for entry in journal.submissions(directory) for task in entry.tasks if task in tasks}


def _report_task(directory: Path, tasks: Sequence[Task], in_flight: Collection[str]) -> Task:
    return msgspec.structs.replace(
        tasks[-1],
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
