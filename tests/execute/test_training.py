"""Whole training runs of real processes over gloo: replicas, ZeRO-1, tied embeddings, checkpoints."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
from sessions import MODEL, session_of, two_stages

from crosspipe.execute.data import Batches, read_corpus
from crosspipe.execute.session import run_session
from crosspipe.model import build_stage, token_loss
from crosspipe.model.optimizer import build_optimizer
from crosspipe.problem import Hop
from crosspipe.problem.problem import DataParallel
from crosspipe.solver import solve
from crosspipe.store import RunRecord

pytestmark = pytest.mark.serial


def replicated(*, zero1: bool):
    problem = two_stages(milliseconds=1)
    replica = DataParallel(reduce=Hop(latency_ns=1_000_000), gather=Hop(latency_ns=1_000_000) if zero1 else None)
    return msgspec.structs.replace(problem, data_parallel=((replica,),) * 2)


def session(directory, problem, **fields):
    run = {"pace": None, "warmup": 0, "iterations": 3, "timeout_s": 60.0, **fields.pop("run", {})}
    made = session_of(directory, {"zbh1": solve(problem, "zbh1")}, problem, **run)
    return msgspec.structs.replace(made, **fields)


def execute(given) -> list[RunRecord]:
    outcomes = run_session(given)
    assert [outcome.failure for outcome in outcomes] == [None] * len(given.points)
    return [outcome.record for outcome in outcomes]


def losses(record: RunRecord) -> list[float]:
    return [iteration.loss for iteration in record.iterations]


def one_process(model, iterations: int, microbatches: int) -> list[float]:
    whole = build_stage(model, ((model.layers,),), 0)
    optimizer = build_optimizer(whole.parameters(), learning_rate=0.01)
    batches = Batches(read_corpus(), size=model.microbatch_size, sequence=model.sequence, seed=0)
    means = []
    for iteration in range(iterations):
        optimizer.zero_grad()
        mine = []
        for mb in range(microbatches):
            tokens, targets = batches(iteration, mb)
            loss = token_loss(whole(tokens), targets)
            (loss / microbatches).backward()
            mine.append(loss.item())
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
        optimizer.step()
        means.append(sum(mine) / microbatches)
    return means


def test_two_stages_times_two_replicas_train_as_one_process(tmp_path):
    model = msgspec.structs.replace(MODEL, tied_embedding=True)
    problem = replicated(zero1=False)
    (record,) = execute(session(tmp_path, problem, model=model, replicas=2))
    assert record.gradient_relative_error < 1e-6
    assert losses(record) == pytest.approx(one_process(model, 3, 2 * problem.microbatches), rel=1e-5)
    assert [(r.rank, r.stage) for r in record.ranks] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert len(record.peak_activation_bytes) == 2


def test_with_zero_1_a_stopped_run_goes_on_with_the_loss_it_would_have_had(tmp_path):
    model = msgspec.structs.replace(MODEL, tied_embedding=True)
    problem = replicated(zero1=True)
    run = {"iterations": 2, "checkpoint_dir": str(tmp_path / "kept"), "checkpoint_every": 1, "resume": True}
    once = session(tmp_path, problem, model=model, replicas=2, run=run)
    (point,) = once.points
    twice = (
        point,
        msgspec.structs.replace(point, out=f"{point.out}-again"),
    )  # nothing but the files is left of the first
    first, second = execute(msgspec.structs.replace(once, points=twice))
    assert first.gradient_relative_error < 1e-6
    assert [i.index for i in second.iterations] == [2, 3]
    assert second.environment.items() >= {"replicas": "2", "zero1": "true", "resumed_after_iterations": "2"}.items()
    assert second.gradient_relative_error is None  # one process would have to catch up first
    assert losses(first) + losses(second) == pytest.approx(one_process(model, 4, 2 * problem.microbatches), rel=1e-5)
    folder = tmp_path / "kept" / "zbh1" / "iteration-00000004"
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]  # the older ones are gone
    assert sorted(file.name for file in folder.iterdir()) == [
        "checkpoint.json",
        *(f"rank{rank}.safetensors" for rank in range(4)),
    ]
    assert json.loads((folder / "checkpoint.json").read_text())["iterations"] == 4
