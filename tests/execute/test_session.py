"""Whole sessions: real processes, real sockets, and ranks that are killed, stopped or wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import polars as pl
import pytest
from orders import schedule_of
from sessions import of_our_ranks, session_of, two_stages, wait_until

from crosspipe.cli import main
from crosspipe.execute.failure import position_file, tail
from crosspipe.execute.position import read_position
from crosspipe.execute.session import launch_local, run_points, run_session
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, simulate
from crosspipe.solver import solve
from crosspipe.store import RunRecord, load, read_timelines, save

pytestmark = pytest.mark.serial


def test_points_share_a_start_and_leave_complete_records(tmp_path):
    problem = two_stages()
    schedules = {name: solve(problem, name) for name in ("1f1b", "zbh1")}
    heard = []
    session = session_of(tmp_path, schedules, problem, iterations=3)
    outcomes = run_session(session, on_progress=lambda *said: heard.append(said))
    assert [(o.point.label, o.failure) for o in outcomes] == [("1f1b", None), ("zbh1", None)]
    pids = set()
    for outcome in outcomes:
        label, record, out = outcome.point.label, outcome.record, Path(outcome.point.out)
        assert record == load(out / "run.json", RunRecord)
        assert record.gradient_relative_error < 1e-6
        assert record.problem_digest == problem.digest()
        predicted = simulate(problem, schedules[label])
        assert record.predicted_makespan_ns == predicted.makespan_ns
        assert record.predicted_iteration_ns == predicted.makespan_ns + 6_000_000  # slowest norm and step
        assert [i.warmup for i in record.iterations] == [True, False, False, False]
        for iteration in record.iterations:
            assert iteration.makespan_ns >= predicted.makespan_ns
            assert (iteration.gradient_norm_ns, iteration.optimizer_step_ns) == (2_000_000, 4_000_000)
        assert record.messages_sent == 3 * 2 * 4
        assert record.planned_receive_bytes[0] % (16 * 32 * 4) == 0
        assert all(peak > 0 for peak in record.peak_activation_bytes)
        assert record.environment["threads"] == "1"
        pids |= {rank.pid for rank in record.ranks}
        compared = pl.read_parquet(out / "comparison.parquet")
        assert len(compared) == 3 * (sum(map(len, schedules[label].orders)) + 8)
        assert (compared["end_ns"] - compared["predicted_end_ns"]).min() >= 0
        for name in ("timelines.parquet", "raw_timelines.parquet"):
            timelines = read_timelines(out / name)
            assert len(timelines) == 3
            for timeline in timelines:
                assert timeline.origin == "emulated"
                assert [b.block for b in timeline.blocks[1]] == list(schedules[label].orders[1])
                assert len(timeline.messages) == 8
    assert len(pids) == 2  # one start for both points
    # both points start from the same parameters and see the same text
    losses = [[i.loss for i in o.record.iterations] for o in outcomes]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]
    assert {(label, total) for label, _, total in heard} == {("1f1b", 4), ("zbh1", 4)}
    assert of_our_ranks(tmp_path) == []


def test_what_cannot_run_is_refused_and_the_rest_runs_unpaced_over_a_loop(tmp_path):
    problem = Problem.uniform(
        traversal="loop", stages=2, microbatches=2, sites=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1, chunks=2
    )
    good = [Block(kind, chunk, mb) for chunk, kind in ((0, "F"), (1, "F"), (1, "B"), (0, "B")) for mb in (0, 1)]
    bad = schedule_of(problem, [good[:-1], good])
    schedules = {"bad": bad, "good": schedule_of(problem, [good, good])}
    session = session_of(tmp_path, schedules, problem, pace=None, threads=2)
    session = msgspec.structs.replace(session, layers=((1, 1), (1, 0)))

    def launch(session):
        """Each rank inside something that knows it."""
        ranks = launch_local(session, inside=lambda rank: ("env", f"INSIDE_OF={rank}"))
        for rank, process in enumerate(ranks):
            told = Path(f"/proc/{process.pid}/environ")
            wait_until(lambda told=told, rank=rank: f"INSIDE_OF={rank}".encode() in told.read_bytes().split(b"\0"))
        return ranks

    bad, good = run_session(session, launch=launch)
    assert bad.point.label == "bad"
    assert "stage 0 lacks" in str(bad.failure)
    assert good.failure is None
    assert good.record.gradient_relative_error < 1e-6
    assert good.record.pace is None
    assert good.record.environment["threads"] == "2"


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGKILL, "rank 1 was killed by SIGKILL"), (signal.SIGSTOP, "rank 1 is stopped")]
)
def test_a_rank_that_is_killed_or_stopped_ends_its_own_point_only(tmp_path, number, said):
    problem = two_stages()
    schedules = {label: solve(problem, "1f1b") for label in ("before", "hit", "after")}
    session = session_of(tmp_path, schedules, problem, iterations=8, timeout_s=3.0)
    hit = []

    def strike(label: str, iteration: int, total: int) -> None:
        if label == "hit" and iteration >= 2 and not hit:
            pid = load(tmp_path / "out" / "before" / "run.json", RunRecord).ranks[1].pid
            os.kill(pid, number)
            hit.append((pid, time.monotonic()))

    outcomes = {o.point.label: (o, time.monotonic()) for o in run_points(session, on_progress=strike)}
    assert outcomes["before"][0].failure is None
    assert outcomes["after"][0].failure is None
    failure, when = outcomes["hit"]
    message = str(failure.failure)
    assert message.startswith(f"{said} (iteration ")
    assert "action " in message
    assert "end of" in message
    assert "rank1.log: " in message
    kept = load(tmp_path / "logs" / "point1.partial.json", RunRecord) if number == signal.SIGKILL else None
    if kept is not None:  # what it finished before, though it had no time to say anything
        assert len(kept.iterations) >= 2
    assert "\n" not in message
    assert when - hit[0][1] < 3.0 + 8.0  # the time-out, and the grace of everybody else
    assert not Path(failure.point.out, "run.json").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(hit[0][0], 0)
    assert of_our_ranks(tmp_path) == []
    # the first and the last point were trained alike, by different processes
    losses = [[i.loss for i in outcomes[label][0].record.iterations] for label in ("before", "after")]
    assert losses[0] == losses[1]


def test_a_schedule_written_into_the_watched_file_takes_over_and_the_loss_goes_on(tmp_path):
    problem = two_stages()
    schedules = {label: solve(problem, "1f1b") for label in ("steady", "swapped")}
    file = tmp_path / "next.json"
    session = session_of(tmp_path, schedules, problem, iterations=12, swap_file=str(file), jitter_ms=1.0)
    offered = {
        1: solve(problem, "zbh1"),
        5: Schedule(traversal="ud", stages=2, chunks=1, microbatches=4, orders=((), ())),
    }

    def offer(label: str, iteration: int, total: int) -> None:
        if label == "swapped" and iteration >= min(offered, default=total):
            save(file, offered.pop(min(offered)))

    outcomes = run_session(session, on_progress=offer)
    assert [o.failure for o in outcomes] == [None, None]
    steady, swapped = (o.record for o in outcomes)
    assert steady.swaps == ()
    taken, refused = swapped.swaps
    assert (taken.schedule_name, taken.refused) == ("zbh1", None)
    assert taken.predicted_makespan_ns == simulate(problem, solve(problem, "zbh1")).makespan_ns
    assert "stage 0 lacks" in refused.refused
    assert [i.loss for i in swapped.iterations] == [i.loss for i in steady.iterations]
    rows = read_timelines(Path(outcomes[1].point.out, "timelines.parquet"))
    for measured, timeline in zip(swapped.measured, rows, strict=True):
        name = "zbh1" if measured.index >= taken.iteration else "1f1b"
        assert [b.block for b in timeline.blocks[1]] == list(solve(problem, name).orders[1])
        assert sum(measured.excess_ns.values()) > 0  # jitter alone makes it longer than predicted
        crossing = [m for m in timeline.messages if m.wire is not None]
        assert all(m.arrival_ns - m.served_ns >= 4_000_000 for m in crossing)
        assert len({m.arrival_ns - m.served_ns for m in crossing}) > 1
    # a trace for Perfetto from the run's own file, and its critical path
    trace = tmp_path / "run.trace.json"
    assert main(["convert", str(Path(outcomes[1].point.out, "timelines.parquet")), str(trace)]) == 0
    spans = [e for e in json.loads(trace.read_bytes())["traceEvents"] if e["ph"] == "X"]
    assert sum(e["name"].startswith("W") for e in spans) == 2 * 4
    assert rows[-1].critical_path()[-1].end_ns == rows[-1].end_ns


def test_ranks_that_cannot_even_start_fail_every_point_once(tmp_path):
    problem = two_stages()
    schedules = {label: solve(problem, "1f1b") for label in ("a", "b")}
    session = session_of(tmp_path, schedules, problem, data=str(tmp_path / "nowhere"))
    began = time.monotonic()
    outcomes = run_session(session)
    assert [o.point.label for o in outcomes] == ["a", "b"]
    for outcome in outcomes:
        assert "holds no text to train on" in str(outcome.failure)
        assert "run.data" in str(outcome.failure)
    assert time.monotonic() - began < 60


def test_no_rank_outlives_whoever_started_it(tmp_path):
    problem = two_stages(milliseconds=50)
    session = session_of(tmp_path, {"long": solve(problem, "1f1b")}, problem, iterations=1000)
    file = save(tmp_path / "given.json", session)
    code = (
        "import sys\nfrom crosspipe.execute.session import run_session\nfrom crosspipe.execute.spec import Session\n"
        "from crosspipe.store import load\nrun_session(load(sys.argv[1], Session))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(file)])
    try:
        wait_until(lambda: (p := read_position(position_file(tmp_path / "logs", 1))) and p.iteration >= 1)
        assert len(of_our_ranks(tmp_path)) == 2
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not of_our_ranks(tmp_path), seconds=5)


def test_closing_early_ends_the_ranks(tmp_path):
    problem = two_stages()
    session = session_of(tmp_path, {"a": solve(problem, "1f1b"), "b": solve(problem, "zbh1")}, problem)
    points = run_points(session)
    assert next(points).failure is None
    assert of_our_ranks(tmp_path)
    points.close()
    assert of_our_ranks(tmp_path) == []


def test_a_trace_for_a_wire_that_is_not_there_is_refused(tmp_path):
    problem = two_stages()  # its wires are 0>1 and 1>0
    trace = tmp_path / "trace.csv"
    trace.write_text("start_s,factor,wire\n0,1,0>1\n1,0.5,0>2\n")
    session = session_of(tmp_path, {"a": solve(problem, "1f1b")}, problem, bandwidth_trace=str(trace))
    (outcome,) = run_session(session)
    assert "no wire 0>2 in this problem; its wires are 0>1, 1>0" in str(outcome.failure)


class Launcher:
    """In the place of srun: one process that stands for all ranks, given as Python; `seen` is what it found."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.command, self.seen, self.process = [sys.executable, "-c", code, *arguments], None, None

    def __call__(self, session):
        self.seen = {file.name for file in Path(session.directory).iterdir()}
        self.process = subprocess.Popen(self.command)
        return [self.process]


def a_record(directory: Path) -> Path:
    """A finished point's record, to be put where a rank on another host would have written it."""
    record = RunRecord(
        problem_digest="", schedule_name="", origin="", transport="gloo", pace=1.0,
        predicted_makespan_ns=1, predicted_iteration_ns=1, iterations=(), planned_receive_bytes=(),
    )  # fmt: skip
    return save(directory / "elsewhere.json", record)


def test_a_record_from_another_host_may_take_a_while_to_be_seen_and_old_wires_are_forgotten(tmp_path, monkeypatch):
    problem = two_stages()
    session = session_of(tmp_path, {"a": solve(problem, "1f1b")}, problem)
    logs, out = Path(session.directory), Path(session.points[0].out)
    logs.mkdir()
    (logs / "wire-0").write_bytes(b"\xff" * 7 + b"\x7f")  # of a host that was rebooted since: free in 292 years
    writer = (
        "import os, sys, time, pathlib\nif os.fork(): os._exit(0)\ntime.sleep(2)\n"
        "out = pathlib.Path(sys.argv[2])\nout.parent.mkdir(parents=True, exist_ok=True)\n"
        "os.replace(sys.argv[1], out)"
    )
    launcher = Launcher(writer, str(a_record(tmp_path)), str(out / "run.json"))
    (outcome,) = run_session(session, launch=launcher)
    assert outcome.failure is None
    assert outcome.record.predicted_makespan_ns == 1
    assert not {name for name in launcher.seen if name.startswith("wire-")}
    # one that never comes is still a failure
    monkeypatch.setattr("crosspipe.execute.session._ELSEWHERE_S", 0.2)
    (outcome,) = run_session(session, launch=Launcher("pass"))
    assert "all ranks ended, but there is no run.json" in str(outcome.failure)


def test_ranks_that_were_never_started_do_not_hang_and_an_earlier_start_is_not_quoted(tmp_path):
    problem = two_stages()
    session = session_of(tmp_path, {"a": solve(problem, "1f1b")}, problem)
    (outcome,) = run_session(session, launch=Launcher("import sys; sys.exit(3)"))
    assert str(outcome.failure) == "the ranks did not start: what starts them ended with code 3"
    log = tmp_path / "rank0.log"
    log.write_text("of an earlier start\n")
    size = log.stat().st_size
    assert tail(log, 3, size) == ""
    log.write_text("of an earlier start\nof this one\n")
    assert tail(log, 3, size) == "of this one"


@pytest.mark.parametrize(("deaf", "code"), [(False, 7), (True, -signal.SIGKILL)])
def test_a_launcher_of_remote_ranks_is_asked_to_end_them_before_it_is_killed(tmp_path, monkeypatch, deaf, code):
    monkeypatch.setattr("crosspipe.execute.session._TERM_S", 1.0 if deaf else 60.0)
    problem = two_stages()
    schedule = solve(problem, "1f1b")
    session = session_of(tmp_path, {"a": schedule, "b": schedule}, problem)
    heard = "signal.SIG_IGN" if deaf else "lambda *_: sys.exit(7)"
    script = (
        f"import os, signal, sys, time, pathlib\nsignal.signal(signal.SIGTERM, {heard})\n"
        "out = pathlib.Path(sys.argv[2])\nout.parent.mkdir(parents=True, exist_ok=True)\n"
        "os.replace(sys.argv[1], out)\nwhile True: time.sleep(0.05)"
    )
    launcher = Launcher(script, str(a_record(tmp_path)), str(Path(session.points[0].out, "run.json")))
    points = run_points(session, launch=launcher)
    assert next(points).failure is None
    points.close()
    assert launcher.process.returncode == code
