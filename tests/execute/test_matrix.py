"""Every family of schedules, on every transport of a CPU, in both number formats: the gradients of one process."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from inprocess_ranks import batch, execute, format_of, module_at
from sessions import session_of
from torch import nn

from crosspipe.execute.engine import Settings
from crosspipe.execute.lowering import lower
from crosspipe.execute.session import run_session
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.solver import SCHEDULES, solve

REAL = Settings(paced=False, emulate=False, clip_norm=None)
FAMILIES = [(name, entry.traversal) for name, entry in SCHEDULES.items() if entry.traversal in ("ud", "wave", "loop")]
# bfloat16 has 8 bits; sums of a few terms in another order may differ in the last two or three
TOLERANCE = {"float32": 1e-6, "bfloat16": 3e-2}


def problem_of(traversal: str, *, stages: int, microbatches: int) -> Problem:
    return Problem.uniform(
        traversal=traversal,
        stages=stages,
        microbatches=microbatches,
        sites=2,
        forward_ms=2,
        input_grad_ms=2,
        weight_grad_ms=2,
        latency_ms=1,
        serialisation_ms=1,
    )


@cache
def schedule_of(traversal: str, stages: int, microbatches: int, name: str) -> Schedule:
    problem = problem_of(traversal, stages=stages, microbatches=microbatches)
    return solve(problem, name, time_limit_s=1, workers=1)


def test_the_matrix_has_every_family():
    assert {"gpipe", "1f1b", "zbh1", "zbh2", "zbv", "v_half", "v_min", "interleaved_1f1b"} <= {n for n, _ in FAMILIES}
    assert {"cross_ud", "cross_ud_sub", "cross_wave", "cross_loop"} <= {name for name, _ in FAMILIES}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "traversal"), FAMILIES)
def test_in_process(name, traversal, dtype):
    problem = problem_of(traversal, stages=4, microbatches=8)
    plan = lower(problem, schedule_of(traversal, 4, 8, name), message_bytes=format_of(dtype).size_bytes)
    _, modules = execute(problem, plan, REAL, dtype=dtype)
    model = nn.Sequential(*[module_at(position, dtype) for position in range(problem.positions)])
    for mb in range(problem.microbatches):
        x, target = batch(0, mb, dtype)
        (nn.functional.mse_loss(model(x), target) / problem.microbatches).backward()
    mine = [p.grad for position in sorted(modules) for p in modules[position].parameters()]
    reference = [p.grad for p in model.parameters()]
    if traversal == "ud":  # each weight sums its microbatches in their order, as one process does
        assert all(torch.equal(a, b) for a, b in zip(mine, reference, strict=True))
    worst = max(float((a - b).float().norm() / b.float().norm()) for a, b in zip(mine, reference, strict=True))
    assert worst <= TOLERANCE[dtype]


@pytest.mark.serial
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("traversal", ["ud", "wave", "loop"])
def test_over_gloo(tmp_path, traversal, dtype):
    problem = problem_of(traversal, stages=2, microbatches=4)
    names = [name for name, shape in FAMILIES if shape == traversal]
    schedules = {name: schedule_of(traversal, 2, 4, name) for name in names}
    session = session_of(
        tmp_path, schedules, problem, dtype=dtype, pace=None, iterations=1, warmup=0, timeout_s=60.0
    )  # fmt: skip
    outcomes = run_session(session)
    assert [(o.point.label, o.failure) for o in outcomes] == [(name, None) for name in names]
    for outcome in outcomes:
        assert outcome.record.gradient_relative_error <= TOLERANCE[dtype], outcome.point.label
