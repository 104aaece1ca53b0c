"""Checkpoints: whole or not at all, refused by any other run, and a loss that goes on to the last bit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest
import torch
from inprocess_ranks import run_ranks
from safetensors.torch import load_file
from torch import nn

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.execute.checkpoint import Identity, load_checkpoint, save_checkpoint
from crosspipe.execute.inprocess import Hub
from crosspipe.execute.spec import Point, RunConfig, Session
from crosspipe.execute.training import Checkpoints
from crosspipe.execute.training_step import TrainingStep
from crosspipe.model.optimizer import build_optimizer
from crosspipe.problem import Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.schedule import Schedule

IDENTITY = Identity(
    model=ModelConfig(name="tiny", vocabulary=8, hidden=4, intermediate=4, heads=1, kv_heads=1, layers=2, sequence=2),
    layers=((1,), (1,)),
    traversal="ud",
    microbatches=4,
    replicas=1,
    zero1=False,
    seed=0,
    data="d" * 64,
    schedule="5" * 64,
    problem="9" * 64,
)


def write(directory, iterations: int, size: int = 2) -> None:
    def body(transport):
        state = {"w": torch.tensor([float(transport.rank), float(iterations)])}
        save_checkpoint(directory, transport, state, iterations=iterations, schedule_name="1f1b", identity=IDENTITY)

    run_ranks(Hub(size), body)


def read(directory, identity: Identity = IDENTITY):
    return run_ranks(Hub(2), lambda transport: load_checkpoint(directory, transport, identity))


def test_every_rank_gets_back_its_own_and_the_newest(tmp_path):
    write(tmp_path, 3)
    write(tmp_path, 12)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["iteration-00000012"]
    found = read(tmp_path)
    assert [iterations for iterations, _ in found] == [12, 12]
    assert [state["w"].tolist() for _, state in found] == [[0.0, 12.0], [1.0, 12.0]]
    said = json.loads((tmp_path / "iteration-00000012" / "checkpoint.json").read_text())
    assert said["type"] == "checkpoint"
    assert said["identity"]["schedule"] == "5" * 64


def checkpoints(directory, transport, **more) -> Checkpoints:
    """Of one rank that trains a linear layer; only what `Checkpoints` asks of a training."""
    step = TrainingStep([nn.Linear(3, 2)], build_optimizer)
    run = RunConfig(pace=None, checkpoint_dir=str(directory), checkpoint_every=2)
    point = Point(label="delay=[1,0] 1f1b", problem="", schedule="", out="")
    session = Session(model=IDENTITY.model, layers=((2,),), points=(point,), run=run, directory="")
    problem = Problem.uniform(stages=1, microbatches=1, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    training = SimpleNamespace(session=session, problem=problem, step=step, batches=SimpleNamespace(digest=lambda: "d"))
    schedule = Schedule(name="1f1b", traversal="ud", stages=1, chunks=1, microbatches=1, orders=((),))
    return Checkpoints(training, point, schedule, transport, **more)


def test_saved_when_due_in_a_folder_of_the_point_and_never_mixed_with_an_earlier_run(tmp_path):
    def body(transport):
        kept = checkpoints(tmp_path, transport)
        assert kept.begin(resume=False) == 0
        seen = []
        for index in range(5):
            kept.after(SimpleNamespace(index=index))
            seen.append([entry.name for entry in kept.directory.iterdir()] if kept.directory.exists() else [])
        kept.save(4)  # is there already
        kept.save(5)
        assert kept.directory == tmp_path / "delay=_1,0_1f1b"
        assert seen == [[], *[["iteration-00000002"]] * 2, *[["iteration-00000004"]] * 2]
        assert checkpoints(tmp_path, transport).begin(resume=True) == 5
        with pytest.raises(FieldError, match=r"holds the checkpoints of an earlier run; go on .* run\.resume=true"):
            checkpoints(tmp_path, transport).begin(resume=False)

    run_ranks(Hub(1), body)


def test_saving_may_take_as_long_as_starting_and_is_said(tmp_path):
    def body(transport):
        transport.timeout_s = 7.0
        patience, words = [], []
        gather = transport.allgather
        transport.allgather = lambda payload: (patience.append(transport.timeout_s), gather(payload))[1]
        checkpoints(tmp_path, transport, say=words.append).save(3)
        assert words == ["saving a checkpoint after 3 iterations"]
        assert set(patience) == {RunConfig(pace=None).startup_timeout_s}
        assert transport.timeout_s == 7.0

    run_ranks(Hub(1), body)


def test_without_a_checkpoint_there_is_none(tmp_path):
    assert read(tmp_path / "nowhere") == [None, None]


def test_what_was_not_finished_does_not_count(tmp_path):
    write(tmp_path, 3)
    (tmp_path / "iteration-00000003").rename(tmp_path / "partial-00000009")  # died before the rename
    (tmp_path / "iteration-00000011").mkdir()  # no manifest
    assert read(tmp_path) == [None, None]
    write(tmp_path, 9)
    assert [found[0] for found in read(tmp_path)] == [9, 9]


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("schedule", "6" * 64, "schedule = '555555555555': the checkpoint is of another schedule .*'666666666666'"),
        ("problem", "8" * 64, "problem = '999999999999': the checkpoint is of another problem"),
        ("layers", ((2,), (0,)), r"layers = \(\(1,\), \(1,\)\): the checkpoint is of another layers"),
        ("replicas", 2, "replicas = 1: the checkpoint is of another replicas than this run .2.; resume with"),
        ("model", msgspec.structs.replace(IDENTITY.model, name="big", hidden=8), "model = 'tiny'.*'big'"),
    ],
)
def test_another_run_is_refused_in_one_line(tmp_path, field, value, wrong):
    write(tmp_path, 1)
    with pytest.raises(FieldError, match=wrong) as raised:
        read(tmp_path, msgspec.structs.replace(IDENTITY, **{field: value}))
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    write(tmp_path, 1)
    file = tmp_path / "iteration-00000001" / "rank1.safetensors"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ArtifactError, match=r"rank1\.safetensors: is missing or not what checkpoint\.json says"):
        read(tmp_path)


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"cannot be written .*give another run\.checkpoint_dir"):
        write(tmp_path / "file", 1, size=1)


def test_training_goes_on_to_the_last_bit(tmp_path):
    def fresh() -> TrainingStep:
        torch.manual_seed(0)
        return TrainingStep([nn.Linear(3, 2)], lambda p: build_optimizer(p, learning_rate=0.1))

    def iterate(step: TrainingStep, index: int) -> None:
        step.begin()
        for number, (_, p) in enumerate(step.parameters):
            p.grad = torch.full_like(p, 0.1 * index - number).sin()
        step.clip(step.square(), 0.5)
        step.update()

    whole, stopped, resumed = fresh(), fresh(), fresh()
    for index in range(6):
        iterate(whole, index)
    for index in range(3):
        iterate(stopped, index)

    def body(transport):
        save_checkpoint(tmp_path, transport, stopped.state(), iterations=3, schedule_name="1f1b", identity=IDENTITY)
        first, state = load_checkpoint(tmp_path, transport, IDENTITY)
        resumed.load(state)
        return first

    assert run_ranks(Hub(1), body) == [3]
    for index in range(3, 6):
        iterate(resumed, index)
    for (_, a), (_, b) in zip(whole.parameters, resumed.parameters, strict=True):
        assert torch.equal(a, b)
    held = load_file(tmp_path / "iteration-00000003" / "rank0.safetensors")
    assert sorted(held) == sorted(
        f"{kind}.{name}" for kind in ("parameter", "exp_avg", "exp_avg_sq", "step") for name in ("weight", "bias")
    )
