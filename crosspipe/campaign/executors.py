"""Executors: how a task becomes a job. One small interface; each kind of machine has its own class behind it.

`local` uses submitit's local executor (which ignores dependencies: the driver submits a task when what it waits for has
ended); `debug` runs the job at once, in this process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from crosspipe.campaign.job import run_task, submitted
from crosspipe.campaign.tasks import Task
from crosspipe.errors import UsageError


class Job(Protocol):
    """A submitted task."""

    id: str

    def ended(self) -> bool:
        """Whether it runs no more (however it ended)."""

    def how(self) -> str:
        """How it ended, in words."""

    def cancel(self) -> None:
        """Ends it and everything it started."""


class Executor(Protocol):
    """Submits task files; `limit` bounds the jobs at once (None: the scheduler's business)."""

    limit: int | None

    def submit(self, task: Task, path: Path) -> Job:
        """Starts the job of the task file at `path`."""


def check_executor(kind: str) -> None:
    """Raises UsageError for an executor that cannot be had here."""
    if kind == "slurm" and shutil.which("sbatch") is None:
        remedy = "log in to the cluster, or use cluster=local, which also works inside an allocation"
        raise UsageError("cluster.executor", kind, "there is no sbatch on this machine", remedy)
    if kind == "allocation" and "SLURM_JOB_ID" not in os.environ:
        remedy = "submit a script that calls this (slurm/campaign.sbatch), or use salloc"
        raise UsageError("cluster.executor", kind, "this is not inside a Slurm job", remedy)


def make_executor(kind: str, *, workers: int, logs: Path) -> Executor:
    """The executor of a cluster whose jobs this process starts and follows; job logs go to the folder `logs`."""
    if kind == "slurm":
        raise UsageError("cluster.executor", kind, "is handed over to Slurm as a whole", "use submit_campaign")
    return DebugExecutor() if kind == "debug" else LocalExecutor(workers, logs)


class _DoneJob:
    id = str(os.getpid())

    def ended(self) -> bool:
        return True

    def how(self) -> str:
        return "ended"

    def cancel(self) -> None:
        return None


class DebugExecutor:
    """Runs each job in this process, at once: for debuggers and tests."""

    limit = 1

    def submit(self, task: Task, path: Path) -> Job:
        with environment(task.resources.environment):
            run_task(str(path))
        return _DoneJob()


class LocalExecutor:
    """Processes of this machine, through submitit; at most `limit` at once."""

    def __init__(self, limit: int, logs: Path) -> None:
        self.limit = limit
        self._logs = logs

    def submit(self, task: Task, path: Path) -> Job:
        import submitit

        executor = submitit.LocalExecutor(folder=self._logs)
        executor.update_parameters(timeout_min=task.resources.minutes, stderr_to_stdout=True, signal_delay_s=5)
        # a cancelled controller dies with a traceback, which is nobody's news
        with environment(task.resources.environment), stderr_into(self._logs / "submitit.log"):
            return LocalJob(executor.submit(submitted, str(path)))


class LocalJob:
    """A submitit local job: a controller process and, in a session of its own, the job itself."""

    def __init__(self, job) -> None:  # type: ignore[no-untyped-def]
        self._job = job
        self.id: str = job.job_id

    def ended(self) -> bool:
        return bool(self._job.done())

    def how(self) -> str:
        log = Path(self._job.paths.stdout)
        tail = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
        return f"its job {self.id} ended without a result (killed?)" + (f"; last line: {tail[0]}" if tail else "")

    def cancel(self, grace_s: float = 5.0) -> None:
        processes = _descendants(int(self.id))
        for process in processes:
            if process.parent == int(self.id):  # the job; what it started is its own to end
                _signal(os.kill, process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._job.cancel(check=False)
        for session in {process.session for process in processes} - {os.getsid(0)}:
            _signal(os.killpg, session, signal.SIGKILL)


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int


def _descendants(root: int) -> list[_Process]:
    """Every process below `root`, by one walk over /proc."""
    everything = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                everything.append(_Process(int(entry.name), int(fields[1]), int(fields[3])))
    found: list[_Process] = []
    frontier = {root}
    while frontier:
        below = [process for process in everything if process.parent in frontier]
        found += below
        frontier = {process.pid for process in below}
    return found


def _signal(send: Callable[[int, int], None], target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(target, number)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the processes started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Appends to a file what the processes started in the block say on stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
