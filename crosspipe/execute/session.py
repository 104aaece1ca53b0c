"""Runs the points of a session: starts the ranks, watches them, and says for each point how it ended.

Points share one start of the ranks, since starting them costs seconds. A rank that dies, stops or hangs ends its own
point only: all ranks are ended, and started again for the points that are left. How ranks are started is the
launcher's business; here it is processes of this machine, on a cluster it can be srun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from crosspipe.errors import CrosspipeError, FieldError, StageFailed
from crosspipe.execute.failure import find_culprit, forget, log_file, position_file, report_file, tail
from crosspipe.execute.lowering import lower_point
from crosspipe.execute.partial import TRACES, forget_traces, keep_partial
from crosspipe.execute.plan import Plan
from crosspipe.execute.position import SETTING_UP, read_position
from crosspipe.execute.spec import PARENT, RECORD_FILE, Point, Session
from crosspipe.execute.variation import read_bandwidth
from crosspipe.model.config import ALLOCATOR_ENVIRONMENT
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.store import RunRecord, load, save

_POLL_S = 0.05
_ELSEWHERE_S = 30.0  # until a record that was written on another host can be seen here
_TERM_S = 40.0  # for a launcher to end its ranks on other hosts: longer than Slurm's KillWait
_GRACE_S = 3.0  # for ranks to end by themselves after another one failed
_MARGIN_S = 5.0  # the ranks' own time-outs come first
_LAST_LINES = 6

OnProgress = Callable[[str, int, int], None]  # label of the point, iterations begun, of how many
Launch = Callable[[Session], Sequence[subprocess.Popen[bytes]]]


class Outcome(NamedTuple):
    """How a point ended: its record (the Timelines lie beside it, in `point.out`), or why there is none."""

    point: Point
    record: RunRecord | None
    failure: CrosspipeError | None


def run_session(
    session: Session, *, on_progress: OnProgress | None = None, launch: Launch | None = None
) -> list[Outcome]:
    """Executes all points of `session` and returns how each ended, in the order they ended. See `run_points`."""
    return list(run_points(session, on_progress=on_progress, launch=launch))


def run_points(
    session: Session, *, on_progress: OnProgress | None = None, launch: Launch | None = None
) -> Iterator[Outcome]:
    """Executes the points of `session` one after the other and yields how each ended, as it ends.

    A finished point has `run.json`, `timelines.parquet` and `raw_timelines.parquet` in its `out`. A failure is a
    StageFailed that names the rank, what became of it, where it was, and the end of its log; a point that cannot be
    lowered is refused before anything starts. Whatever ends this generator ends the ranks; if this process dies they
    die with it. `launch` starts the ranks (default: processes of this machine) and returns one process for each, or one
    that stands for all; as they may be on other hosts, their files get time to appear here, and their launcher time to
    end them.
    """
    directory = Path(session.directory)
    directory.mkdir(parents=True, exist_ok=True)
    given: dict[Point, Point] = {}  # as the ranks get it -> as the caller knows it
    for number, point in enumerate(session.points):
        Path(point.out, RECORD_FILE).unlink(missing_ok=True)
        try:
            plan = _plan(session, point)
        except CrosspipeError as error:
            yield Outcome(point, None, error)
        else:
            file = save(directory / f"plan-{number}.json", plan)
            given[msgspec.structs.replace(point, plan=str(file))] = point
    try:
        while given:
            forget(directory, session.ranks)
            forget_traces(directory)
            _forget_wires(directory)
            rendezvous = directory / f"rendezvous-{uuid.uuid4().hex[:12]}"
            attempt = msgspec.structs.replace(session, points=tuple(given), rendezvous=f"file://{rendezvous.resolve()}")
            for outcome in _attempt(attempt, on_progress, launch):
                yield outcome._replace(point=given.pop(outcome.point))
    finally:
        for pattern in (TRACES, "rendezvous-*", "reference-*.safetensors"):
            for file in directory.glob(pattern):
                file.unlink(missing_ok=True)
        _forget_wires(directory)


def _plan(session: Session, point: Point) -> Plan:
    problem, run = load(point.problem, Problem), session.run
    session.check(problem)
    if not session.emulate and (run.jitter_ms or run.bandwidth_trace is not None):
        name = "jitter_ms" if run.jitter_ms else "bandwidth_trace"
        raise FieldError(f"run.{name}", getattr(run, name), "varies emulated links, and none is", "leave it out here")
    if run.bandwidth_trace is not None:
        _check_trace(run.bandwidth_trace, problem.wires)
    return lower_point(session, problem, load(point.schedule, Schedule))


def _check_trace(file: str, wires: Sequence[str]) -> None:
    """FieldError where the trace speaks of a wire that the problem does not have: it would change nothing."""
    unknown = {wire for wire in read_bandwidth(file) if wire is not None} - set(wires)
    if unknown:
        raise FieldError(
            "run.bandwidth_trace",
            file,
            f"no wire {', '.join(sorted(unknown))} in this problem",
            f"its wires are {', '.join(wires) or 'none'}",
        )


def _forget_wires(directory: Path) -> None:
    """What a wire's senders share is only of use to those who are alive: a rebooted host's clock begins anew."""
    for file in directory.glob("wire-*"):
        file.unlink(missing_ok=True)


def _attempt(session: Session, on_progress: OnProgress | None, launch: Launch | None) -> Iterator[Outcome]:
    """One start of the ranks: yields finished points, and, if it ends early, the one that failed."""
    directory = Path(session.directory)
    points, done = session.points, 0
    silence = _Silence(session)
    heard = (SETTING_UP, SETTING_UP)
    logged = [_size(log_file(directory, rank)) for rank in range(session.ranks)]
    ranks = (launch or launch_local)(session)
    patience_s, term_s = (0.0, 0.0) if launch is None else (_ELSEWHERE_S, _TERM_S)
    ended_s: float | None = None
    try:
        while True:
            codes = [rank.poll() for rank in ranks]
            for point in _finished(points[done:]):
                yield Outcome(point, load(Path(point.out, RECORD_FILE), RunRecord), None)
                done += 1
            position = read_position(position_file(directory, 0))
            if on_progress is not None and position is not None and heard != position[:2]:
                told, heard = heard, position[:2]
                saving = heard == (told[0], SETTING_UP)  # between two iterations of a point, or after its last
                if not saving and 0 <= heard[0] < len(points):
                    total = session.run.warmup + session.run.iterations
                    on_progress(points[heard[0]].label, max(0, heard[1]), total)
            if all(code == 0 for code in codes):
                ended_s = time.monotonic() if ended_s is None else ended_s
                if done < len(points) and time.monotonic() - ended_s < patience_s:
                    time.sleep(_POLL_S)
                    continue
                failure = StageFailed(f"all ranks ended, but there is no {RECORD_FILE}; see the logs in {directory}")
                yield from (Outcome(point, None, failure) for point in points[done:])
                return
            if any(codes) or silence.too_long():
                yield from _failed(session, ranks, done, logged)
                return
            time.sleep(_POLL_S)
    except BaseException as stopped:  # not a failure of the ranks: whoever watches was told to end
        _stop(ranks, term_s)
        with contextlib.suppress(CrosspipeError, OSError):  # what was finished, if it can be had
            if heard[0] == done < len(points) and not any(_finished(points[done:])):
                keep_partial(session, done, points[done], f"stopped by {type(stopped).__name__}")
        raise
    finally:
        _stop(ranks, term_s)


class _Silence:
    """For how long no rank has moved, by the clock of whoever watches: ranks on other hosts have other clocks."""

    def __init__(self, session: Session) -> None:
        self._session, self._directory = session, Path(session.directory)
        self._stamps: list[int] = []
        self._moved_ns = time.monotonic_ns()

    def too_long(self) -> bool:
        """Whether that is longer than any of them may wait."""
        positions = [read_position(position_file(self._directory, rank)) for rank in range(self._session.ranks)]
        stamps = [p.stamp_ns for p in positions if p is not None]
        now_ns = time.monotonic_ns()
        if stamps != self._stamps:
            self._stamps, self._moved_ns = stamps, now_ns
        setting_up = any(p is None or p.iteration == SETTING_UP for p in positions)
        run = self._session.run
        patience_s = run.startup_timeout_s if setting_up else run.timeout_s
        return now_ns - self._moved_ns > (patience_s + _MARGIN_S) * 1e9


def _finished(points: Sequence[Point]) -> Iterator[Point]:
    """The first of `points` that have their record; it is written last."""
    return takewhile(lambda point: Path(point.out, RECORD_FILE).exists(), points)


def _began(directory: Path, ranks: int) -> bool:
    """Whether any rank has said a word in this start."""
    return any(position_file(directory, r).exists() or report_file(directory, r).exists() for r in range(ranks))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _failed(
    session: Session, ranks: Sequence[subprocess.Popen[bytes]], done: int, logged: Sequence[int]
) -> Iterator[Outcome]:
    """How the points from number `done` on ended, as far as they did, after some rank failed.

    `logged[rank]` is how long its log was before this start.

    The failure belongs to the point the culprit was at; to all, if the ranks did not even get to the first.
    """
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(_POLL_S)
    directory, points = Path(session.directory), session.points
    codes: list[int | None] = [None] * session.ranks  # unknown where one process (srun) stands for all ranks
    pids: dict[int, int] = {}
    if len(ranks) == session.ranks:
        codes = [rank.poll() for rank in ranks]
        pids = {rank: process.pid for rank, process in enumerate(ranks)}
    all_ended = all(rank.poll() is not None for rank in ranks)
    if all_ended and len(ranks) < session.ranks and not _began(directory, session.ranks):
        failure = StageFailed(f"the ranks did not start: what starts them ended with code {ranks[0].returncode}")
        yield from (Outcome(point, None, failure) for point in points[done:])
        return
    culprit = find_culprit(directory, codes, pids, all_ended=all_ended)
    log = log_file(directory, culprit.rank)
    for point in _finished(points[done:]):
        yield Outcome(point, load(Path(point.out, RECORD_FILE), RunRecord), None)
        done += 1
    at = SETTING_UP if culprit.position is None else culprit.position.point
    kept = keep_partial(session, at, points[at], str(culprit)) if at in range(done, len(points)) else None
    partly = f"; what was finished is in {kept}" if kept is not None else ""
    failure = StageFailed(
        f"{culprit}{partly}; end of {log}: {tail(log, _LAST_LINES, logged[culprit.rank]) or '(empty)'}"
    )
    failed = points[done:] if at == SETTING_UP else points[done : at + 1]
    yield from (Outcome(point, None, failure) for point in failed)


def launch_local(
    session: Session, *, inside: Callable[[int], Sequence[str]] = lambda rank: ()
) -> list[subprocess.Popen[bytes]]:
    """Starts the ranks as processes of this machine, each in a process group of its own, output in its log.

    `inside(rank)` is what a rank's command begins with, such as `ip netns exec NAME`; it must become the rank (exec).
    """
    directory = Path(session.directory)
    file = save(directory / "session.json", session)
    environment = {
        **os.environ,
        **ALLOCATOR_ENVIRONMENT,
        "OMP_NUM_THREADS": str(session.run.threads),
        "WORLD_SIZE": str(session.ranks),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),  # this host's own name may not resolve
        PARENT: str(os.getpid()),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(session.ranks):
            with log_file(directory, rank).open("ab") as log:
                ranks.append(
                    subprocess.Popen(
                        [*inside(rank), sys.executable, "-m", "crosspipe.execute.worker", str(file)],
                        env={**environment, "RANK": str(rank)},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
    except BaseException:
        _stop(ranks)
        raise
    return ranks


def _stop(ranks: Sequence[subprocess.Popen[bytes]], term_s: float = 0.0) -> None:
    """Ends what still runs. SIGKILL: a stopped process hears nothing else, and there is nothing to save.

    With `term_s`, SIGTERM that long before: srun then ends its ranks on other hosts, which would outlive its SIGKILL.
    """
    if term_s:
        for rank in ranks:
            rank.terminate()
        deadline = time.monotonic() + term_s
        while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
            time.sleep(_POLL_S)
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(signal.SIGKILL)
    for rank in ranks:
        rank.wait()
