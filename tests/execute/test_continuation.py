"""A point over several starts of the ranks: what is kept, when, and what is begun anew where something is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from inprocess_ranks import run_ranks
from sessions import MODEL, session_of, two_stages
from torch import nn

from crosspipe.execute import continuation
from crosspipe.execute.continuation import NOTHING, Continuation
from crosspipe.execute.inprocess import Hub
from crosspipe.execute.partial import TraceLog, read_traces, trace_file
from crosspipe.execute.session import run_points, run_session
from crosspipe.execute.spec import Point, RunConfig, Session
from crosspipe.execute.trace import Trace
from crosspipe.execute.training import Checkpoints
from crosspipe.execute.training_step import TrainingStep
from crosspipe.model.optimizer import build_optimizer
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.solver import solve
from crosspipe.store import RunRecord, load, read_timelines

SECOND = 1_000_000_000


def trace(index: int, *, begin_s: float = 0.0, lasts_s: float = 0.0) -> Trace:
    begin, end = round(begin_s * SECOND), round((begin_s + lasts_s) * SECOND)
    moments = dict.fromkeys(("norm_end_ns", "raw_norm_end_ns", "step_end_ns", "raw_step_end_ns"), end)
    return Trace(
        index=index, begin_ns=begin, blocks=(), messages=(), sent=0, blocks_end_ns=end, loss=None, gradient_norm=0.0,
        clip_factor=1.0, **moments,
    )  # fmt: skip


class Start:
    """One rank's part of a start of the ranks, training a linear layer."""

    def __init__(self, folder: Path, transport, every_s: float = 0.0) -> None:
        step = TrainingStep([nn.Linear(3, 2)], build_optimizer)
        point = Point(label="1f1b", problem="", schedule="", out="", kept=str(folder))
        session = Session(model=MODEL, layers=((3,), (0,)), points=(point,), run=RunConfig(pace=None), directory="")
        problem = Problem.uniform(stages=2, microbatches=1, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
        training = SimpleNamespace(
            session=session, problem=problem, step=step, batches=SimpleNamespace(digest=lambda: "d")
        )
        schedule = Schedule(name="1f1b", traversal="ud", stages=2, chunks=1, microbatches=1, orders=((), ()))
        state = Checkpoints(training, point, schedule, transport, directory=folder)
        self.path = trace_file(session, 0, point, transport.rank)
        self.weight = step.parameters[0][1]
        self.kept = Continuation(state, self.path, transport, every_s=every_s)
        self.past = self.kept.begin()
        self.log = TraceLog(self.path, self.past.traces)


def leave(folder: Path, *, saved: int, noted: tuple[int, int]) -> None:
    """What two ranks leave that saved after `saved` iterations and noted `noted[rank]`."""

    def body(transport) -> None:
        start = Start(folder, transport)
        start.weight.data.fill_(float(transport.rank + 1))
        for index in range(noted[transport.rank]):
            start.log(trace(index))
            if index + 1 == saved:
                start.kept.save(saved, start.log, 0.5 if transport.rank else None)

    run_ranks(Hub(2), body)


def test_the_next_start_has_the_state_and_what_every_rank_had_noted(tmp_path):
    leave(tmp_path / "kept", saved=3, noted=(5, 4))

    def body(transport):
        start = Start(tmp_path / "kept", transport)
        start.log(trace(3))  # made again, from the state
        start.log(trace(4))
        return start.past, start.weight.unique().tolist(), [t.index for t in read_traces(start.path)]

    for rank, (past, weight, noted) in enumerate(run_ranks(Hub(2), body)):
        assert (past.done, [t.index for t in past.traces]) == (3, [0, 1, 2, 3])
        assert past.note.gradient_relative_error == (0.5 if rank else None)
        assert past.note.continued_after == (3,)
        assert weight == [rank + 1.0]
        assert noted == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("lost", ["nothing was kept", "a line", "the notes", "the state", "the state's end"])
def test_where_something_is_missing_on_one_rank_all_begin_anew(tmp_path, lost, capsys):
    kept = tmp_path / "kept"
    if lost != "nothing was kept":
        leave(kept, saved=3, noted=(3, 3))
    damaged = kept / "iteration-00000003" / "rank1.safetensors"
    if lost == "a line":
        lines = (kept / "rank1.traces.jsonl").read_bytes()
        (kept / "rank1.traces.jsonl").write_bytes(lines[:-1])
    elif lost == "the notes":
        (kept / "rank1.json").unlink()
    elif lost == "the state":
        damaged.unlink()
    elif lost == "the state's end":
        damaged.write_bytes(damaged.read_bytes()[:-1])
    starts = run_ranks(Hub(2), lambda transport: Start(kept, transport))
    assert [start.past for start in starts] == [NOTHING, NOTHING]
    assert sorted(path.name for path in kept.iterdir()) == ["rank0.traces.jsonl", "rank1.traces.jsonl"]
    assert [read_traces(start.path) for start in starts] == [[], []]
    if "state" in lost:
        assert "what an earlier start left cannot be used: " in capsys.readouterr().out


def test_saved_every_so_often_and_for_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch):
    """Iterations of 6 s, every 15 s: after the third, which ends at 18 s. That save takes 2 s, so 40 s pass then."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(continuation, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def body(transport):
        start = Start(tmp_path / "kept", transport, every_s=15.0)
        sync = start.log.sync
        saved, begin_s = [], 0.0

        def slow() -> None:
            sync()
            clock.now_s += 2.0

        start.log.sync = slow
        for index in range(12):
            done = trace(index, begin_s=begin_s, lasts_s=6.0)
            start.log(done)
            if start.kept.due(done):
                start.kept.save(index + 1, start.log, None)
                saved.append(index)
            begin_s += 6.0
        return saved

    assert run_ranks(Hub(1), body) == [[2, 9]]


@pytest.mark.serial
def test_a_run_whose_ranks_were_ended_goes_on_and_ends_in_one_record(tmp_path):
    problem = two_stages()
    session = session_of(tmp_path, {"zbh1": solve(problem, "zbh1")}, problem, iterations=12)
    session = msgspec.structs.replace(session, keep_every_s=0.001)
    (whole,) = session.points

    def life(name: str) -> Session:
        point = msgspec.structs.replace(whole, out=str(tmp_path / name), kept=str(tmp_path / "kept"))
        return msgspec.structs.replace(session, points=(point,))

    class Preempted(BaseException): ...

    def preempt(label: str, iteration: int, total: int) -> None:
        if iteration >= 8:
            raise Preempted

    with pytest.raises(Preempted):
        list(run_points(life("first"), on_progress=preempt))
    (outcome,), (uninterrupted,) = run_session(life("second")), run_session(session)
    assert outcome.failure is None
    assert uninterrupted.failure is None
    record, other = outcome.record, uninterrupted.record
    assert [i.index for i in record.iterations] == list(range(13))
    assert [i.warmup for i in record.iterations] == [True] + [False] * 12
    assert [i.loss for i in record.iterations] == [i.loss for i in other.iterations]
    assert record.gradient_relative_error == pytest.approx(other.gradient_relative_error, rel=1e-6)
    assert 1 <= int(record.environment["continued_after_iterations"]) <= 9
    assert "continued_after_iterations" not in other.environment
    for name in ("timelines.parquet", "raw_timelines.parquet"):
        assert len(read_timelines(tmp_path / "second" / name)) == 12
    assert load(tmp_path / "second" / "run.json", RunRecord) == record
