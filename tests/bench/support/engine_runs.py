"""Whole runs over gloo: makespans against their prediction, and static schedules with receives posted early and at use.

Four ranks in paced blocks; where the real mathematics matters, the model is as long as this machine needs to spend a
good quarter of every block in it.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import msgspec
from support.engine_bar import Asked, Group, Samples, Show
from support.instances import DELAYS, label

from crosspipe.campaign.config import NetworkConfig, PipelineConfig
from crosspipe.campaign.costs import CostsConfig, make_costs
from crosspipe.campaign.problems import build_problem
from crosspipe.execute import Point, RunConfig, Session, run_session
from crosspipe.execute.session import Launch, OnProgress
from crosspipe.problem import LinkTable, Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split
from crosspipe.profile.launch import mpiexec_command
from crosspipe.schedule import Schedule
from crosspipe.solver import solve
from crosspipe.store import RunRecord, load, save

STAGES, MICROBATCHES, BLOCK_MS = 4, 8, 20.0
SCHEDULES = {"ud": ("1f1b", "zbh1", "cross_ud"), "wave": ("cross_wave",)}
LAYERS: dict[str, Split] = {"ud": ((1,),) * STAGES, "wave": ((1, 1),) * STAGES}
SEARCH_S = 10.0
ENDING_NS = 20_000_000  # gradient norm, and as much for the optimizer step: paced like blocks, as in every run
INSIDE = 64 * 2**20 / 25e9 / 38e-3  # a hop inside a site / T_F: the paper's M70, 64 MiB over 200 Gbit/s in 38 ms blocks
REAL_MS = 4.0  # the mathematics of a block alone on a core, at first: two ranks share one, more or less by the schedule
REAL_SHARE = 0.3  # of the paced time, to be sure of a quarter
M70_MS = (19.0, 23.0, 10.5)  # F, D and W of a stage of the paper's large model, at half their time
ROUNDS = 2  # of receives early and at use in turn, three measured iterations each: six samples have an interval
WAN_DELAYS = ((0.25, 2), (2, 0.25), (2, 2))
STATIC = ("gpipe", "1f1b", "zbh1")


def makespan_groups(*, quick: bool) -> list[Group]:
    """A group per traversal and pair of delays."""
    groups = []
    for delays in DELAYS[-1:] if quick else DELAYS:
        for traversal, names in SCHEDULES.items():
            some = names[:1] if quick else names
            asked = tuple(one for name in some for one in _asked(f"{name} {label(delays)}"))
            groups.append(Group(asked, partial(_makespans, traversal, some, delays, quick)))
    return groups


def _asked(what: str) -> tuple[Asked, ...]:
    return (
        Asked("Makespan", f"{what}: off the prediction", "%", 2, 0.5, each=True),
        Asked("Makespan", f"{what}: re-simulated off the prediction", "%", 5, each=True),
        Asked("Makespan", f"{what}: late blocks", "%", 1),
        Asked("Makespan", f"{what}: late messages", "%", 1),
        Asked("Makespan", f"{what}: real mathematics", "%", 25, least=True),
    )


def early_groups(*, quick: bool) -> list[Group]:
    """A group per pair of delays: what receives at use cost over early ones, for each static schedule."""
    groups = []
    for delays in WAN_DELAYS[:1] if quick else WAN_DELAYS:
        some = STATIC[1:2] if quick else STATIC
        asked = tuple(Asked("Early receives", _early_key(name, delays), "%") for name in some)
        groups.append(Group(asked, partial(_early, some, delays, quick)))
    return groups


def _early_key(name: str, delays: tuple[float, float]) -> str:
    return f"{name} {label(delays)}: posted at use over early"


def problem_of(traversal: str, delays: tuple[float, float], model: ModelConfig) -> Problem:
    """Blocks of BLOCK_MS on two sites; delays across as multiples of T_F, inside a site as on the paper's machine."""
    block_ms = BLOCK_MS * (1 if traversal == "ud" else 2)  # of both chunks
    message_bytes = 4 * model.microbatch_size * model.sequence * model.hidden
    network = NetworkConfig(kind="injected", delay=delays, inside_ratio=INSIDE)
    return problem_on(local_links(message_bytes), traversal, LAYERS[traversal], model, block_ms, message_bytes, network)


def problem_on(
    table: LinkTable,
    traversal: str,
    layers: Split,
    model: ModelConfig,
    block_ms: float,
    message_bytes: int,
    network: NetworkConfig,
) -> Problem:
    """F, D and W of `block_ms` a stage on measured links: the way from a profile to a Problem is the campaign's own."""
    given = CostsConfig(
        source="given",
        forward_ms=block_ms,
        input_grad_ms=block_ms,
        weight_grad_ms=block_ms,
        message_mib=message_bytes / 2**20,
    )
    return build_problem(
        make_costs(given, model, traversal, layers),
        table,
        network=network,
        pipeline=PipelineConfig(sites=2, stages=STAGES, microbatches=MICROBATCHES, memory_microbatches=6),
        pace=None,
    )


@cache
def local_links(message_bytes: int) -> LinkTable:
    """What the link profiler finds between the ranks on this machine, over gloo."""
    with tempfile.TemporaryDirectory(prefix="crosspipe-bench-") as folder:
        options = [
            f"--out={folder}",
            "--sites=0,0,1,1",
            f"--sizes=1024,{message_bytes},{2 * message_bytes}",
            "--streams=none",
            "--transports=gloo",
            "--time-budget=6",
        ]
        command = mpiexec_command(STAGES, ["crosspipe.profile.links", *options])
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        return load(Path(folder) / "links.json", LinkTable)


def _makespans(traversal: str, names: tuple[str, ...], delays: tuple[float, float], quick: bool, show: Show) -> Samples:
    layers = LAYERS[traversal]
    model = fitting_model(layers)
    show("measuring links inside a site")
    problem, schedules = problem_of(traversal, delays, model), {}
    for name in names:
        show(f"planning {name}")
        schedules[name] = solve(problem, name, time_limit_s=2 if quick else SEARCH_S)
    show("trying")
    run = RunConfig(pace=1.0, iterations=2, warmup=1, timeout_s=30, check_gradients=False)
    tried = execute(schedules, problem, run, model, layers)
    sequence = round(model.sequence * REAL_SHARE / min(map(real_share, tried.values())))
    model = msgspec.structs.replace(model, sequence=sequence)
    show("running")
    if not quick:
        run = msgspec.structs.replace(run, iterations=8)
    records = execute(schedules, problem, run, model, layers)
    samples: dict[str, list[float]] = {}
    for name, record in records.items():
        what, measured, predicted = f"{name} {label(delays)}", record.measured, record.predicted_makespan_ns
        blocks = sum(len(order) + 2 for order in schedules[name].orders) * len(measured)
        resimulated = [i.resimulated_makespan_ns or 0 for i in measured]
        samples |= {
            f"{what}: off the prediction": [100 * abs(i.makespan_ns / predicted - 1) for i in measured],
            f"{what}: re-simulated off the prediction": [100 * abs(span / predicted - 1) for span in resimulated],
            f"{what}: late blocks": [100 * sum(i.late_blocks for i in measured) / blocks],
            f"{what}: late messages": [100 * sum(i.late_messages for i in measured) / record.messages_sent],
            f"{what}: real mathematics": [100 * real_share(record)],
        }
    return samples


def real_share(record: RunRecord) -> float:
    """The mathematics of a paced run as a share of its blocks' time."""
    return float(record.environment["real_compute_share"])


def _early(names: tuple[str, ...], delays: tuple[float, float], quick: bool, show: Show) -> Samples:
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
    early = RunConfig(pace=1.0, iterations=3, warmup=1, timeout_s=30, check_gradients=False)
    runs = {"early": early, "at use": msgspec.structs.replace(early, post_ahead_ms=None)}
    schedules = {name: solve(problem, name) for name in names}
    percent: dict[str, list[float]] = {_early_key(name, delays): [] for name in names}
    for number in range(1 if quick else ROUNDS):
        show(f"round {number + 1}")
        split = LAYERS["ud"]
        turns = sorted(runs, reverse=number % 2 == 1)
        records = {how: execute(schedules, problem, runs[how], _tiny(sum(map(sum, split))), split) for how in turns}
        for name in names:
            pairs = zip(records["at use"][name].measured, records["early"][name].measured, strict=True)
            percent[_early_key(name, delays)] += [
                100 * (late.makespan_ns / soon.makespan_ns - 1) for late, soon in pairs
            ]
    return percent


def execute(
    schedules: Mapping[str, Schedule],
    problem: Problem,
    run: RunConfig,
    model: ModelConfig,
    layers: Split,
    *,
    origin: str = "emulated",
    launch: Launch | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, RunRecord]:
    """The record of each schedule, all of them in one start of the ranks. With another `origin` nothing is injected."""
    with tempfile.TemporaryDirectory(prefix="crosspipe-bench-") as folder:
        root = Path(folder)
        file = str(save(root / "problem.json", problem))
        points = tuple(
            Point(
                label=name,
                problem=file,
                schedule=str(save(root / f"{name}.json", schedule)),
                out=str(root / name),
            )
            for name, schedule in schedules.items()
        )
        session = Session(
            model=model,
            layers=layers,
            points=points,
            run=run,
            gradient_norm_ns=(ENDING_NS,) * problem.stages,
            optimizer_step_ns=(ENDING_NS,) * problem.stages,
            emulate=origin == "emulated",
            origin=origin,
            directory=str(root / "logs"),
        )
        records = {}
        for outcome in run_session(session, launch=launch, on_progress=on_progress):
            if outcome.record is None:
                raise outcome.failure or AssertionError("a point has a record or a failure")
            records[outcome.point.label] = outcome.record
        return records


def _tiny(layers: int, *, hidden: int = 64, sequence: int = 16) -> ModelConfig:
    return ModelConfig(
        vocabulary=256, hidden=hidden, intermediate=3 * hidden, heads=4, kv_heads=4, layers=layers, sequence=sequence
    )


@cache
def fitting_model(split: Split) -> ModelConfig:
    """A decoder whose second stage computes F, D and W of one microbatch of a chunk in REAL_MS each, on a core."""
    import torch

    from crosspipe.model import SplitBackward, build_stage

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sequence = 32
    while True:
        config = _tiny(sum(map(sum, split)), hidden=256, sequence=sequence)
        traversal = "ud" if len(split[0]) == 1 else "wave"
        stage = SplitBackward(build_stage(config, split, 1, traversal=traversal, seed=0))
        took = []
        for mb in range(40):
            time.sleep(10e-3)  # between blocks a rank waits, and others use its core
            x = torch.randn(1, sequence, 256)
            began = time.perf_counter()
            y = stage.forward(mb, x)
            stage.input_grad(mb, torch.ones_like(y))
            stage.weight_grad(mb)
            took.append(1e3 * (time.perf_counter() - began) / 3)
        block_ms = statistics.quantiles(took, n=4)[0]  # of a quiet moment
        if block_ms >= REAL_MS:
            torch.set_num_threads(threads)
            return config
        if sequence >= 2048:
            raise RuntimeError(f"a chunk takes {block_ms:.1f} ms at most on this machine, {REAL_MS} are needed")
        sequence += 16
