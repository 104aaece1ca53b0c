"""The block profiler beside plain autograd, torch.profiler's allocation events and FlopCounterMode."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import cache

import msgspec
import torch
from support.measuring_check import Check, exact, near
from support.options import ROOT

from crosspipe.model import SplitBackward, build_stage
from crosspipe.model.config import ModelConfig
from crosspipe.model.memory import StorageTracker
from crosspipe.problem.analytic import stage_work
from crosspipe.problem.layers import Split, split_model
from crosspipe.profile.block_memory import block_memory
from crosspipe.profile.block_samples import StageData, time_blocks
from crosspipe.profile.kernels import counted_flops

ROUNDS, WARM_UP = 40, 5
STAGES = 4


def block_checks(quick: bool) -> Iterator[Check]:
    """Times of one inner stage of the small model; bytes and FLOPs of every stage of the tiny one."""
    rounds = 3 if quick else ROUNDS
    yield near("F + D + W over plain forward and backward", lambda: [both for both, _, _ in _split_over_whole(rounds)])
    yield near("F over plain forward", lambda: [forward for _, forward, _ in _split_over_whole(rounds)])
    yield near("D + W over plain backward", lambda: [backward for _, _, backward in _split_over_whole(rounds)])
    yield exact("memory of F, D and W against torch.profiler's allocation events", "bytes", _bytes_apart)
    yield exact("analytic FLOPs of F, D and W against FlopCounterMode", "FLOP", _flops_apart)


def _model(name: str) -> ModelConfig:
    return msgspec.yaml.decode((ROOT / "conf" / "model" / f"{name}.yaml").read_bytes(), type=ModelConfig, strict=False)


@cache
def _split_over_whole(rounds: int) -> tuple[tuple[float, float, float], ...]:
    """Ours over PyTorch's (whole, forward, backward), pair by pair, on two copies of the same stage."""
    torch.set_num_threads(1)
    config = _model("small")
    split = split_model(config, STAGES)
    stage, plain = SplitBackward(build_stage(config, split, 1)), build_stage(config, split, 1)
    data = StageData(plain, 0)

    def in_blocks() -> tuple[float, float]:
        (x, target), gradient = data.received(), data.gradient()
        forward = _duration(lambda: stage.forward(0, x, target))
        return forward, _duration(lambda: (stage.input_grad(0, gradient), stage.weight_grad(0)))

    def whole() -> tuple[float, float]:
        (x, _), gradient, out = data.received(), data.gradient(), []
        forward = _duration(lambda: out.append(plain(x.requires_grad_())))
        return forward, _duration(lambda: out.pop().backward(gradient))

    ratios = []
    for number in range(WARM_UP + rounds):
        both = (in_blocks, whole) if number % 2 else (whole, in_blocks)
        took = {call: call() for call in both}
        ours, theirs = took[in_blocks], took[whole]
        ratios.append((sum(ours) / sum(theirs), ours[0] / theirs[0], ours[1] / theirs[1]))
    return tuple(ratios[WARM_UP:])


def _duration(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _stages(config: ModelConfig) -> Iterator[tuple[int, Split, SplitBackward, StageData]]:
    split = split_model(config, STAGES)
    for number in range(STAGES):
        module = build_stage(config, split, number)
        stage, data = SplitBackward(module), StageData(module, 0)
        time_blocks(stage, data, 1, 1, 1)  # gradients exist
        yield number, split, stage, data


def _bytes_apart() -> float:
    apart = 0
    for _, _, stage, data in _stages(_model("tiny")):
        memory = block_memory("bench", stage, StorageTracker(), data.received, data.gradient)
        wanted = (memory.after_forward, memory.after_input_grad - memory.after_forward, -memory.after_input_grad)
        for call, held in zip(_blocks(stage, data), wanted, strict=True):
            apart += abs(_allocated(call) - held)
    return apart


def _flops_apart() -> float:
    config, apart = _model("tiny"), 0
    for number, split, stage, data in _stages(config):
        work = stage_work(config, split, "ud", number, 0, skip_masked=False)
        wanted = (work.forward_flops, work.input_grad_flops, work.weight_grad_flops)
        for call, flops in zip(_blocks(stage, data), wanted, strict=True):
            with counted_flops() as counter:
                call()
            apart += abs(counter.get_total_flops() - flops)
    return apart


def _blocks(stage: SplitBackward, data: StageData) -> tuple[Callable[[], object], ...]:
    return (
        lambda: stage.forward(0, *data.received()),
        lambda: stage.input_grad(0, data.gradient()),
        lambda: stage.weight_grad(0),
    )


def _allocated(call: Callable[[], object]) -> int:
    """Bytes that `call` allocated and did not free."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler would say on stderr that it starts and stops
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    return sum(event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
