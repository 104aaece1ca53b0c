"""Whole runs over gloo: makespans against their prediction, and static schedules with receives posted early and at use.

Four ranks in paced blocks; where the real mathematics matters, the model is as long as this machine needs to spend a
good quarter of every block in it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import msgspec
from support.engine_bar import Asked, Group, Samples, Show
from support.instances import DELAYS, label

from crosspipe.execute import Point, RunConfig, Session, run_session
from crosspipe.problem import Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.solver import solve
from crosspipe.store import RunRecord, save

STAGES, MICROBATCHES, BLOCK_MS = 4, 8, 20.0
SCHEDULES = {"ud": ("1f1b", "zbh1", "cross_ud"), "wave": ("cross_wave",)}
REAL_MS = 4.5  # the mathematics of a block alone on a core; two ranks share one
M70_MS = (38.0, 46.0, 21.0)  # F, D and W of a stage of the paper's large model
ROUNDS = 5  # of receives early and at use in turn, two measured iterations each
WAN_DELAYS = ((0.25, 2), (2, 0.25), (2, 2))
STATIC = ("gpipe", "1f1b", "zbh1")


def makespan_groups(*, quick: bool) -> list[Group]:
    """A group per schedule and pair of delays."""
    groups = []
    for delays in DELAYS[-1:] if quick else DELAYS:
        for traversal, names in SCHEDULES.items():
            for name in names[:1] if quick else names:
                what = f"{name} {label(delays)}"
                asked = (
                    Asked("Makespan", f"{what}: off the prediction", "%", 2, 0.5),
                    Asked("Makespan", f"{what}: re-simulated off the prediction", "%", 5),
                    Asked("Makespan", f"{what}: late blocks", "%", 1),
                    Asked("Makespan", f"{what}: late messages", "%", 1),
                    Asked("Makespan", f"{what}: real mathematics", "%", 25, least=True),
                )
                groups.append(Group(asked, partial(_makespans, what, traversal, name, delays, quick)))
    return groups


def early_groups(*, quick: bool) -> list[Group]:
    """A group per static schedule and pair of delays: what receives at use cost over early ones."""
    return [
        Group(
            (Asked("Early receives", f"{name} {label(delays)}: posted at use over early", "%"),),
            partial(_early, name, delays, quick),
        )
        for delays in (WAN_DELAYS[:1] if quick else WAN_DELAYS)
        for name in (STATIC[1:2] if quick else STATIC)
    ]


def problem_of(traversal: str, delays: tuple[float, float]) -> Problem:
    """Blocks of BLOCK_MS, two sites; delays as multiples of T_F."""
    stage_ms = BLOCK_MS * (1 if traversal == "ud" else 2)
    return Problem.uniform(
        traversal=traversal,
        stages=STAGES,
        microbatches=MICROBATCHES,
        sites=2,
        forward_ms=stage_ms,
        input_grad_ms=stage_ms,
        weight_grad_ms=stage_ms,
        latency_ms=delays[0] * stage_ms,
        serialisation_ms=delays[1] * stage_ms,
        memory_microbatches=6,
    )


def _makespans(what: str, traversal: str, name: str, delays: tuple[float, float], quick: bool, show: Show) -> Samples:
    problem = problem_of(traversal, delays)
    show("searching" if name.startswith("cross") else "running")
    schedule = solve(problem, name, time_limit_s=2 if quick else 15)
    run = RunConfig(pace=1.0, iterations=2 if quick else 8, warmup=1, timeout_s=30, check_gradients=False)
    layers = ((1,),) * STAGES if traversal == "ud" else ((1, 1),) * STAGES
    record = _run({"only": schedule}, problem, {"only": run}, fitting_model(len(layers[0]) * STAGES), layers)["only"]
    measured = record.measured
    blocks = sum(len(order) + 2 for order in schedule.orders)
    messages = record.messages_sent / len(measured)
    predicted = record.predicted_makespan_ns
    return {
        f"{what}: off the prediction": [100 * abs(i.makespan_ns / predicted - 1) for i in measured],
        f"{what}: re-simulated off the prediction": [
            100 * abs((i.resimulated_makespan_ns or 0) / predicted - 1) for i in measured
        ],
        f"{what}: late blocks": [100 * i.late_blocks / blocks for i in measured],
        f"{what}: late messages": [100 * i.late_messages / messages for i in measured],
        f"{what}: real mathematics": [100 * float(record.environment["real_compute_share"])],
    }


def _early(name: str, delays: tuple[float, float], quick: bool, show: Show) -> Samples:
    """Both in turn, the first of a round now one and now the other: the machine drifts over minutes."""
    forward, input_grad, weight_grad = M70_MS
    problem = Problem.uniform(
        stages=STAGES,
        microbatches=MICROBATCHES,
        sites=2,
        forward_ms=forward,
        input_grad_ms=input_grad,
        weight_grad_ms=weight_grad,
        latency_ms=delays[0] * forward,
        serialisation_ms=delays[1] * forward,
    )
    early = RunConfig(pace=1.0, iterations=2, warmup=1, timeout_s=30, check_gradients=False)
    runs = {"early": early, "at use": msgspec.structs.replace(early, post_ahead_ms=None)}
    schedule = solve(problem, name)
    percent = []
    for number in range(1 if quick else ROUNDS):
        show(f"round {number + 1}")
        turns = sorted(runs, reverse=number % 2 == 1)
        records = _run(dict.fromkeys(turns, schedule), problem, runs, _tiny(STAGES), ((1,),) * STAGES)
        took = {how: sum(i.makespan_ns for i in record.measured) for how, record in records.items()}
        percent.append(100 * (took["at use"] / took["early"] - 1))
    return {f"{name} {label(delays)}: posted at use over early": percent}


def _run(
    schedules: Mapping[str, object],
    problem: Problem,
    runs: Mapping[str, RunConfig],
    model: ModelConfig,
    layers: Sequence[Sequence[int]],
) -> dict[str, RunRecord]:
    """The record of each schedule, executed with the run configuration of its name."""
    records = {}
    for how, schedule in schedules.items():
        with tempfile.TemporaryDirectory(prefix="crosspipe-bench-") as folder:
            root = Path(folder)
            point = Point(
                label=how,
                problem=str(save(root / "problem.json", problem)),
                schedule=str(save(root / "schedule.json", schedule)),
                out=str(root / "out"),
            )
            (outcome,) = run_session(
                Session(
                    model=model,
                    layers=tuple(tuple(row) for row in layers),
                    points=(point,),
                    run=runs[how],
                    directory=str(root / "logs"),
                )
            )
        if outcome.record is None:
            raise outcome.failure or AssertionError("a point has a record or a failure")
        records[how] = outcome.record
    return records


def _tiny(layers: int, *, hidden: int = 64, sequence: int = 16) -> ModelConfig:
    return ModelConfig(
        vocabulary=256, hidden=hidden, intermediate=3 * hidden, heads=4, kv_heads=4, layers=layers, sequence=sequence
    )


@cache
def fitting_model(layers: int) -> ModelConfig:
    """A decoder whose middle layer computes F, D and W of one microbatch in about REAL_MS each on one core."""
    import torch

    from crosspipe.model import SplitBackward, build_stage

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sequence = 32
    while True:
        config = _tiny(layers, hidden=256, sequence=sequence)
        stage = SplitBackward(build_stage(config, ((1,),) * layers, 1, seed=0))
        took = []
        for mb in range(6):
            x = torch.randn(1, sequence, 256)
            began = time.perf_counter()
            y = stage.forward(mb, x)
            stage.input_grad(mb, torch.ones_like(y))
            stage.weight_grad(mb)
            took.append((time.perf_counter() - began) / 3)
        if sequence >= 2048 and 1e3 * min(took) < REAL_MS:
            raise RuntimeError(f"a layer takes {1e3 * min(took):.1f} ms at most on this machine, {REAL_MS} are needed")
        if 1e3 * min(took) >= REAL_MS:
            torch.set_num_threads(threads)
            return config
        sequence += 32
