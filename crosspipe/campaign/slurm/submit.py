"""Submits what a campaign lacks, as arrays, and writes down what it did so that it can be killed at any moment.

Called again (another `crosspipe run` or `retry` on the same directory) it looks for what an earlier call left: arrays
that still work are not submitted twice, one that was submitted in the last breath is found by its name.
"""

from __future__ import annotations

import contextlib
import os
import socket
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
from crosspipe.errors import UsageError
from crosspipe.store import Claim, Store, claims, load, my_claim, save
from crosspipe.store.claims import holder_lives

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
        queue = Queue()
        _recover(directory, say)
        in_flight, useless = _in_flight(directory, plan.store, queue)
        cancel(useless)
        left = [reference for reference in plan.missing if plan.store.done(reference) is None]  # since it was planned
        missing = [reference for reference in left if reference not in in_flight]
        write_campaign(plan, directory, missing)
        tasks = plan_tasks(plan, directory, bodies=bodies, missing=missing, in_flight=in_flight)
        if plan.points[0].config.until != "profile" and (tasks or (in_flight and not _report_comes(directory))):
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


def _submit(directory: Path, array: Array, after: Sequence[str]) -> Submission:
    """One array. Where sbatch fails its entry stays: a failure to answer is no proof that there is no job, and the next
    call looks for one by its name."""
    entry = journal.intend(directory, array.stage, [task.id for task in array.tasks], after)
    logs, path = directory.resolve() / "logs", journal.path_of(directory.resolve(), entry)
    job = _sbatch(array, entry, logs, path)
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
    with contextlib.suppress(SlurmError):  # no accounting
        said += call(
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={names}", "--format=JobName,JobID"]
        )
    known = dict(line.split("|", 1) for line in said.splitlines())
    for entry in lost:
        if entry.name in known:
            number = known[entry.name].partition("_")[0]
            say(f"job {number} ({entry.stage}) was submitted by a call that heard no answer: it is this campaign's")
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


def _report_comes(directory: Path) -> bool:
    """Whether the last that was submitted is a report: it waits for all that came before it."""
    entries = journal.submissions(directory)
    return bool(entries) and entries[-1].stage == REPORT


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
