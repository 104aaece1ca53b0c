"""Measure the model's blocks: time, memory and bytes of F, D, W and B for every (stage, chunk), one stage at a time.

Each block is warmed up, then timed in rounds of F, D, W, F, B on fresh microbatches; times are medians with their
distribution-free 95 % interval, bytes are exact. From the shell: `python -m crosspipe.profile.blocks`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from crosspipe.errors import FieldError
from crosspipe.model.config import ALLOCATOR_ENVIRONMENT, ModelConfig, Split, check_split
from crosspipe.model.decoder import DecoderStage, build_stage
from crosspipe.model.memory import memory_tracker
from crosspipe.model.split_backward import SplitBackward
from crosspipe.problem import BlockCost, BlockCosts, Spread
from crosspipe.problem.costs import Kernel
from crosspipe.problem.spread import FEWEST
from crosspipe.profile.block_memory import BlockMemory, block_memory
from crosspipe.profile.block_samples import Samples, StageData, believed, joined, time_after_pipeline, time_blocks
from crosspipe.profile.fitting_memory import check_fits, free_bytes
from crosspipe.profile.kernels import kernel_table

PASSES_ON_CPU = 3
Progress = Callable[[int, int, str], None]
"""Called with (done, total, what comes next)."""


def profile_blocks(
    config: ModelConfig,
    split: Split,
    *,
    traversal: str = "ud",
    device: str | torch.device = "cpu",
    repetitions: int = 40,
    budget_s: float = 6.0,
    passes: int | None = None,
    seed: int = 0,
    threads: int = 1,
    recompute: bool = False,
    kernels: bool = True,
    progress: Progress | None = None,
) -> BlockCosts:
    """The model's BlockCosts on this machine, `origin` "measured".

    `split` is the decoder layers per (stage, chunk) along `traversal`. Each (stage, chunk) is timed `repetitions`
    times, or until its share of `budget_s` is used (at least 6 times, else there is no interval). The stages are gone
    through in `passes`, one stage in memory at a time, so that a machine that slows down meanwhile does so for all
    (None: 3 on the CPU, 1 on a GPU of one's own). `threads` are torch's on the CPU, as the run will have them. With
    `recompute` F keeps only its input and D runs F again; `kernels` adds the operators' table of every block.

    Raises FieldError naming stage and block for samples that are no durations, for a module that holds memory when a
    microbatch is done, and for a stage that needs more memory than is free.
    """
    device = torch.device(device)
    check_split(config, split, traversal)
    passes = (1 if device.type == "cuda" else PASSES_ON_CPU) if passes is None else passes
    _check_options(device, repetitions, budget_s, passes, threads)
    check_fits(config, split, traversal, _free_bytes(device), str(device))
    stages, chunks = len(split), len(split[0])
    total = passes * stages * chunks
    seen: list[list[_StagePass]] = [[] for _ in split]
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            for done, (number, stage) in enumerate((p, s) for p in range(passes) for s in range(stages)):
                if progress is not None:
                    progress(done * chunks, total, f"stage {stage}, pass {number + 1} of {passes}")
                modules = [
                    build_stage(config, split, stage, chunk, traversal=traversal, seed=seed, device=device)
                    for chunk in range(chunks)
                ]
                rule = _Rule(-(-repetitions // passes), -(-FEWEST // passes), budget_s / total)
                last = number == passes - 1
                seen[stage].append(_profile_stage(stage, modules, rule, seed, recompute, kernels and last))
    finally:
        torch.set_num_threads(threads_before)
    if progress is not None:
        progress(total, total, "done")

    spreads: dict[str, Spread] = {}
    for stage, found in enumerate(seen):
        for chunk in range(chunks):
            spreads |= believed(f"s{stage}.c{chunk}", joined([one.blocks[chunk] for one in found]))
        spreads |= believed(f"s{stage}", joined([one.after for one in found]))
    return BlockCosts(
        traversal=traversal,
        blocks=tuple(
            tuple(_cost(f"s{stage}.c{chunk}", spreads, found[-1].memory[chunk]) for chunk in range(chunks))
            for stage, found in enumerate(seen)
        ),
        gradient_norm_ns=tuple(round(spreads[f"s{stage}.gradient_norm"].median) for stage in range(stages)),
        optimizer_step_ns=tuple(round(spreads[f"s{stage}.optimizer_step"].median) for stage in range(stages)),
        parameter_bytes=tuple(found[-1].parameter_bytes for found in seen),
        workspace_bytes=tuple(tuple(memory.workspace for memory in found[-1].memory) for found in seen),
        layers=split,
        origin="measured",
        spreads=spreads,
        kernels={
            f"s{stage}.c{chunk}": table
            for stage, found in enumerate(seen)
            for chunk, table in enumerate(found[-1].kernels)
        },
        environment=_environment(device, threads) | {"recompute": str(recompute).lower()},
    )


class _Rule(NamedTuple):
    """How often one pass times a block: `repetitions`, or until `budget_s` is used, but `fewest` at least."""

    repetitions: int
    fewest: int
    budget_s: float


class _StagePass(NamedTuple):
    """What one pass measures on one stage; `blocks`, `memory` and `kernels` (last pass only) per chunk."""

    blocks: list[Samples]
    memory: list[BlockMemory]
    kernels: list[tuple[Kernel, ...]]
    after: Samples
    parameter_bytes: int


def _profile_stage(
    stage: int, modules: Sequence[DecoderStage], rule: _Rule, seed: int, recompute: bool, kernels: bool
) -> _StagePass:
    blocks, memory, tables = [], [], []
    for chunk, module in enumerate(modules):
        wrapped, data = SplitBackward(module, recompute=recompute), StageData(module, seed)
        blocks.append(time_blocks(wrapped, data, *rule))
        tracker = memory_tracker(data.device)
        memory.append(block_memory(f"s{stage}.c{chunk}", wrapped, tracker, data.received, data.gradient))
        if kernels:
            tables.append(kernel_table(wrapped, data))
    parameters = [parameter for module in modules for parameter in module.parameters()]
    after = time_after_pipeline(parameters, rule.repetitions)
    return _StagePass(blocks, memory, tables, after, sum(p.nbytes for p in parameters))


def _cost(place: str, spreads: dict[str, Spread], memory: BlockMemory) -> BlockCost:
    forward, input_grad, weight_grad, fused = (round(spreads[f"{place}.{kind}"].median) for kind in "FDWB")
    return BlockCost(
        forward_ns=forward,
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        fused_backward_ns=fused,
        **memory.fields(),
    )


def _free_bytes(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes()


def _check_options(device: torch.device, repetitions: int, budget_s: float, passes: int, threads: int) -> None:
    if device.type not in ("cpu", "cuda"):
        raise FieldError("device", str(device), "cannot be timed", "use cpu or cuda, or the analytic costs")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FieldError("device", str(device), "there is no CUDA device here", "use cpu")
    if repetitions < FEWEST:
        raise FieldError(
            "repetitions", repetitions, "too few for a 95 % interval of the median", f"use {FEWEST} or more"
        )
    if not budget_s > 0:
        raise FieldError("budget_s", budget_s, "leaves no time", "use a number of seconds > 0")
    for name, value in (("passes", passes), ("threads", threads)):
        if value < 1:
            raise FieldError(name, value, "nothing would be timed", "use 1 or more")


def _environment(device: torch.device, threads: int) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    unset = sorted(name for name in ALLOCATOR_ENVIRONMENT if name not in os.environ)
    return {
        "host": platform.node(),
        "device": f"{device} ({name})",
        "threads": str(threads),
        "torch": str(torch.__version__),
        "allocator": f"glibc's default ({', '.join(unset)} not set)" if unset else "keeps freed memory",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
