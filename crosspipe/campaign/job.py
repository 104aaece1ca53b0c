"""One job: makes the artifacts of one task, each on its own claim, and says how each ended.

Runs inside a submitit job, a batch script or by hand (`python -m crosspipe.campaign.job TASK.json`); it needs the store
and the campaign directory and nothing of whoever submitted it. A failure ends its own artifact only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from crosspipe.campaign.outcomes import JobRecord, read_outcome, say_now, write_job, write_outcome
from crosspipe.campaign.tasks import Task
from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.store import Making, Store, TakenOver, claims, load, my_claim
from crosspipe.store.claims import Claim, Lives, holder_lives

Ended = tuple[Making, CrosspipeError | None]  # an artifact and why it failed, if it did
CLUSTER = "SLURM_CLUSTER_NAME"  # in a job's environment: job numbers are that cluster's
HEARTBEAT_S = claims.SILENT_S / 20


class Context(NamedTuple):
    """What a stage's body may use besides the artifacts: where to log, what was configured, how to say what it does."""

    task: Task
    store: Store
    log_dir: Path
    say: Callable[[str], None]

    @property
    def patience_s(self) -> float:
        """For how long a file that must be there may not show yet."""
        return self.task.cluster.patience_s

    def input(self, making: Making, name: str, file: str) -> Path:
        """A file of the input `name`."""
        return self.store.file(making.request.inputs[name], file, patience_s=self.patience_s)


Body = Callable[[Sequence[Making], Context], Iterator[Ended]]


class Me(NamedTuple):
    """The job that this process is: its number, its place in an array, and where its output goes, if that is known.

    `slurm` says whose number it is; else it is that of a process of this machine, `within` the Slurm job (number and
    place) that this is a part of, if it is of one.
    """

    job: str
    index: int | None = None
    log: str | None = None
    slurm: bool = False
    within: tuple[str, int | None] | None = None

    def __str__(self) -> str:
        return self.job if self.index is None else f"{self.job}_{self.index}"

    def claim(self) -> Claim:
        """A claim of this job; only a scheduler's job can be asked for elsewhere."""
        mine = (self.job, self.index) if self.slurm else self.within
        return my_claim() if mine is None else my_claim(*mine, os.environ.get(CLUSTER))

    def lives(self) -> Lives:
        """Who else lives: in a Slurm job, Slurm is asked for jobs elsewhere."""
        if not self.slurm and self.within is None:
            return holder_lives
        from crosspipe.campaign.slurm.claims import JobLives
        from crosspipe.campaign.slurm.queue import Queue

        return JobLives(self, Queue())


def myself() -> Me:
    """Which job this is: submitit's of this machine, Slurm's, or a process that somebody started by hand."""
    within = _slurm_job()
    number = os.environ.get("SUBMITIT_LOCAL_JOB_ID")
    if number is not None:
        return Me(number, None, f"logs/{number}_0_log.out", within=within)  # where submitit puts what is printed here
    if within is None:
        return Me(str(os.getpid()))
    me = Me(*within, slurm=True)
    return me._replace(log=f"logs/{me}_0_log.out") if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" else me


def _slurm_job() -> tuple[str, int | None] | None:
    """The Slurm job that this process is in: its number, its place in an array."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    index = os.environ.get("SLURM_ARRAY_TASK_ID")
    return (os.environ["SLURM_JOB_ID"], None) if index is None else (os.environ["SLURM_ARRAY_JOB_ID"], int(index))


def run_task(path: str | Path, before_failure: Callable[[], None] = lambda: None) -> None:
    """Makes what the task file at `path` lists. Ends normally also where artifacts failed: their outcomes say so.

    `before_failure` is called before a failure is
    recorded, and raises where it was none: the artifact then counts as never begun.
    """
    task = load(path, Task)
    campaign, store = Path(task.campaign), Store(task.store)
    bodies = importlib.import_module(task.bodies)
    body: Body = bodies.BODIES[task.stage]
    payload: Sequence[str] = bodies.PAYLOAD[task.stage]
    me = myself()
    lives = me.lives()
    job, log = str(me), me.log
    write_job(campaign, JobRecord(task=task.id, job=job, process=me.claim(), log=log))
    log_dir = campaign / "logs" / task.id
    log_dir.mkdir(parents=True, exist_ok=True)

    def end(reference: str, error: CrosspipeError | None) -> None:
        if error is not None:
            before_failure()
        status = "done" if error is None else "failed"
        write_outcome(campaign, reference, status, reason="" if error is None else str(error), log=log, job=job)
        print(f"{reference[:20]}: {status}{'' if error is None else f': {error}'}", flush=True)

    context = Context(task, store, log_dir, lambda text: say_now(campaign, task.id, text))
    pending = list(task.references)
    deadline_s = time.monotonic() + context.patience_s  # for all inputs: what was made before this began shows by then
    while pending:
        mine, pending = _take(pending, task, store, campaign, me, lives, deadline_s)
        if mine:
            _make(body, mine, payload, context, end)
        elif pending:
            holder = store.holder(pending[0])
            who = f"process {holder.claim.pid} on {holder.claim.host}" if holder else "another campaign"
            context.say(f"waiting for {who}, which makes the same artifact")
            time.sleep(1.0)


def _take(
    references: Sequence[str], task: Task, store: Store, campaign: Path, me: Me, lives: Lives, deadline_s: float
) -> tuple[list[Making], list[str]]:
    """Begins what can be begun; returns that, and what others are making. What cannot be begun has failed, alone."""
    mine: list[Making] = []
    others: list[str] = []
    requests = task.by_reference
    job, log = str(me), me.log
    try:
        for reference in references:
            request = requests[reference]
            try:
                if store.done(reference) is not None:
                    write_outcome(campaign, reference, "done", log=log, job=job)
                    continue
                missing = [n for n, source in request.inputs.items() if not _there(store, campaign, source, deadline_s)]
                if missing:
                    reason = _why(campaign, request.inputs, missing)
                    write_outcome(campaign, reference, "blocked", reason=reason, job=job)
                    continue
                claim = me.claim()
                if store.claim(request, claim, lives) is not None:
                    others.append(reference)
                    continue
                making = store.begin(request, claim)
                if store.done(reference) is not None:  # finished by another between the first look and the claim
                    store.finish(making)
                    write_outcome(campaign, reference, "done", log=log, job=job)
                    continue
                mine.append(making)
            except CrosspipeError as error:  # a full disk, an input that has just been removed
                print(f"{reference[:20]}: failed: {error}", flush=True)
                write_outcome(campaign, reference, "failed", reason=str(error), log=log, job=job)
    except BaseException:
        for making in mine:
            store.abandon(making)
        raise
    return mine, others


def _there(store: Store, campaign: Path, source: str, deadline_s: float) -> bool:
    """Whether an input is finished; waits while nobody has said that it will not be, until `deadline_s`."""
    pause_s = 0.05
    while store.done(source) is None:
        outcome = read_outcome(campaign, source)
        if (outcome is not None and outcome.status != "done") or time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)
    return True


def _why(campaign: Path, inputs: dict[str, str], missing: Sequence[str]) -> str:
    name = missing[0]
    outcome = read_outcome(campaign, inputs[name])
    if outcome is None:
        return f"its input {name} was never made"
    if outcome.status == "done":
        return f"its input {name} is done, and was not seen; raise cluster.patience_s, or try again"
    return f"its input {name} {outcome.status}: {outcome.reason}".rstrip(": ")


def _make(
    body: Body,
    mine: Sequence[Making],
    payload: Sequence[str],
    context: Context,
    end: Callable[[str, CrosspipeError | None], None],
) -> None:
    """Lets the body work; whatever happens to it, every making is finished or abandoned.

    Ends the job where it was taken for dead and its work is another's.
    """
    left = {making.request.reference: making for making in mine}

    def failed(reference: str, error: CrosspipeError) -> None:
        context.store.abandon(left.pop(reference))
        end(reference, error)

    try:
        with _heartbeat(left):
            for making, error in body(mine, context):
                reference = making.request.reference
                try:
                    if error is None:
                        context.store.finish(making, payload, patience_s=context.patience_s)
                except TakenOver as taken:
                    print(f"{reference[:20]}: {taken}", flush=True)
                    raise SystemExit(1) from None
                except CrosspipeError as refused:  # a full disk, say
                    error = refused
                if error is not None:
                    failed(reference, error)
                    continue
                del left[reference]
                end(reference, None)
        for reference in list(left):
            failed(reference, CrosspipeError(f"the {context.task.stage} stage ended without a word about it"))
    except Exception as error:  # noqa: BLE001 - the job's boundary: whatever it was, the log has it and the campaign goes on
        traceback.print_exc()
        for reference in list(left):
            failed(reference, unexpected(error))
    finally:
        for making in left.values():  # cancelled: no outcome, the next start goes on
            context.store.abandon(making)


@contextlib.contextmanager
def _heartbeat(makings: Mapping[str, Making]) -> Iterator[None]:
    """Touches the claims of what is being made, so that other machines know that this job lives.

    A job that was taken for dead (its node lost its scheduler, and the job was started again elsewhere) ends itself.
    """
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            for making in list(makings.values()):
                held = None
                with contextlib.suppress(OSError, ArtifactError):  # the file system's hiccup: the next beat tells
                    claims.touch(making.directory, making.claim)
                    held = claims.current(making.directory)
                if held is not None and held.claim.token != making.claim.token:
                    print(f"{making.request.reference[:20]}: job {held.claim.job} took this work over", flush=True)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def unexpected(error: Exception) -> CrosspipeError:
    """A fault that is no CrosspipeError, said in one line; its traceback is in the log."""
    return CrosspipeError(f"{type(error).__name__}: {error}".splitlines()[0])


def terminate(signum: int, frame: object) -> None:
    """SIGTERM cancels a job: its processes are stopped, its claims released, nothing is recorded.

    Not a KeyboardInterrupt: a search answers that with its best so far, which is not what was asked for.
    """
    raise SystemExit(1)


def cancellable() -> None:
    """Makes this process cancellable by SIGTERM alone. SIGINT is ignored, not blocked: that holds for every thread."""
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def submitted(path: str) -> None:
    """What submitit runs: `run_task` in a session of its own, so that cancelling reaches its every process."""
    with contextlib.suppress(PermissionError):  # already a session's leader
        os.setsid()
    cancellable()
    run_task(path)


if __name__ == "__main__":
    cancellable()
    run_task(sys.argv[1])
