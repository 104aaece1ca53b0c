"""What a session is told: configuration files, wrong values, and which rank a process is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from crosspipe.errors import FieldError, UsageError
from crosspipe.execute.lowering import lower
from crosspipe.execute.session import run_session
from crosspipe.execute.spec import Point, RunConfig, Session
from crosspipe.execute.worker import check_wires, rank_and_size
from crosspipe.problem import Hop, Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.problem import DataParallel
from crosspipe.solver import solve
from crosspipe.store import Rank, load, save

CONF = Path(__file__).parents[2] / "conf" / "run"
MODEL = ModelConfig(
    vocabulary=256, hidden=8, intermediate=8, heads=2, kv_heads=1, layers=4, sequence=6, microbatch_size=2
)


def test_the_shipped_configurations_name_every_field():
    paced = msgspec.yaml.decode((CONF / "paced.yaml").read_bytes())
    assert set(paced) == set(RunConfig.__struct_fields__)
    assert msgspec.convert(paced, RunConfig).pace == 4
    real = msgspec.yaml.decode((CONF / "real.yaml").read_bytes())
    assert real == {"defaults": ["paced"], "pace": None}


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"pace": 0.0}, "run.pace = 0.0: is not a finite number > 0; use more than 0, or null"),
        ({"pace": float("nan")}, "run.pace = nan"),
        ({"iterations": 0}, "run.iterations = 0: is below 1"),
        ({"warmup": -1}, "run.warmup = -1: is below 0"),
        ({"timeout_s": float("inf")}, "run.timeout_s = inf"),
        ({"jitter_ms": -1.0}, "run.jitter_ms = -1.0"),
        ({"transport": "nccl", "pace": None, "jitter_ms": 1.0}, "run.jitter_ms = 1.0: links emulated on GPUs"),
        ({"post_ahead_ms": -1.0}, "run.post_ahead_ms = -1.0"),
        ({"clip_norm": 0.0}, r"run.clip_norm = 0.0.*or null"),
        ({"transport": "nccl"}, r"run.pace = 1.0: blocks on GPUs are not paced; use run=real, or run.pace=null"),
        ({"threads": 0}, r"run.threads = 0: is below 1"),
        ({"checkpoint_every": 0}, r"run.checkpoint_every = 0: is below 1"),
        ({"resume": True}, r"run.resume = True: nothing says where the checkpoints are; give run.checkpoint_dir"),
    ],
)
def test_wrong_values_name_their_key(values, wrong):
    with pytest.raises(UsageError, match=wrong):
        RunConfig(**{"pace": 1.0, **values})


def session_of(**fields: object) -> Session:
    point = Point(label="a", problem="p.json", schedule="s.json", out="out")
    given = {"model": MODEL, "layers": ((2,), (2,)), "points": (point,), "run": RunConfig(pace=None), **fields}
    return Session(directory="logs", **given)


def test_a_session_is_the_same_after_its_file(tmp_path):
    session = session_of(gradient_norm_ns=(1, 2))
    assert load(save(tmp_path / "session.json", session), Session) == session


def test_a_message_is_a_microbatch_of_activations():
    assert msgspec.structs.asdict(session_of().message_format) == {
        "shape": (2, 6, 8),
        "dtype": "float32",
        "size_bytes": 2 * 6 * 8 * 4,
    }


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"layers": ((2,), (1,), (1,))}, r"3 stages x 1 chunks.*the problem has 2 x 1"),
        ({"layers": ((2,), (1,))}, "places 3 layers, the model has 4"),
        ({"model": msgspec.structs.replace(MODEL, vocabulary=100)}, "vocabulary = 100: tokens are bytes"),
        ({"replicas": 2}, "replicas = 2: the problem has no gradient reductions"),
    ],
)
def test_model_split_and_problem_must_belong_together(fields, wrong):
    problem = Problem.uniform(stages=2, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    session_of().check(problem)
    with pytest.raises(FieldError, match=wrong):
        session_of(**fields).check(problem)


def test_replicas_need_their_reductions_and_zero_1_is_all_or_nothing():
    problem = Problem.uniform(stages=2, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    plain, sharded = DataParallel(reduce=Hop()), DataParallel(reduce=Hop(), gather=Hop())
    replicated = msgspec.structs.replace(problem, data_parallel=((plain,), (plain,)))
    session_of(replicas=2).check(replicated)
    assert session_of(replicas=3).ranks == 6
    with pytest.raises(FieldError, match="replicas = 1: the problem has gradient reductions"):
        session_of().check(replicated)
    mixed = msgspec.structs.replace(problem, data_parallel=((plain,), (sharded,)))
    with pytest.raises(FieldError, match="ZeRO-1 is for the whole model or not at all"):
        session_of(replicas=2).check(mixed)
    with pytest.raises(FieldError, match="replicas = 0: is below 1"):
        session_of(replicas=0)


def test_a_rank_knows_itself_from_its_launcher_or_from_slurm():
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
    assert rank_and_size(slurm) == (3, 8)
    assert rank_and_size({**slurm, "RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
    with pytest.raises(UsageError, match="which rank it is; set RANK and WORLD_SIZE, or use srun"):
        rank_and_size({"RANK": "1"})


def test_senders_of_one_emulated_wire_must_be_on_one_host():
    problem = Problem.uniform(
        traversal="loop", stages=4, microbatches=4, sites=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1
    )
    plan = lower(problem, solve(problem, "interleaved_1f1b"))
    ranks = [Rank(rank=r, stage=r, site=r // 2, host="a", pid=1, device="cpu") for r in range(4)]
    check_wires(plan.wire_senders, ranks)
    ranks[3] = msgspec.structs.replace(ranks[3], host="b")
    with pytest.raises(FieldError, match="wire = '1>0': ranks 2, 3 share it, on hosts a, b"):
        check_wires(plan.wire_senders, ranks)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"emulate": False, "run": RunConfig(pace=None, jitter_ms=1.0)}, "run.jitter_ms = 1.0: varies emulated links"),
        (
            {"run": RunConfig(pace=None, bandwidth_trace="nowhere.csv")},
            "run.bandwidth_trace = 'nowhere.csv': cannot be",
        ),
    ],
)
def test_variations_that_cannot_be_are_refused_before_anything_starts(tmp_path, fields, wrong):
    problem = Problem.uniform(stages=2, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    point = Point(
        label="a",
        problem=str(save(tmp_path / "p.json", problem)),
        schedule=str(save(tmp_path / "s.json", solve(problem, "1f1b"))),
        out=str(tmp_path / "out"),
    )
    session = msgspec.structs.replace(session_of(**fields), points=(point,), directory=str(tmp_path / "logs"))
    (outcome,) = run_session(session)
    assert outcome.record is None
    assert wrong in str(outcome.failure)
    assert not list((tmp_path / "logs").glob("*.log"))
