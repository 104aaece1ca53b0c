"""Measure the model's blocks: time, memory and bytes of F, D, W and B for every (stage, chunk), one stage at a time.

`python -m crosspipe.profile.blocks --help` is the same from the shell. Each block is warmed up, then timed in rounds of
F, D, W, F, B on fresh microbatches; times are medians with their distribution-free 95 % interval, bytes are exact.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from crosspipe.errors import CrosspipeError, FieldError, UsageError
from crosspipe.model.config import ALLOCATOR_ENVIRONMENT, ModelConfig, Split, check_split, split_model
from crosspipe.model.decoder import DecoderStage, build_stage
from crosspipe.model.memory import memory_tracker
from crosspipe.model.split_backward import SplitBackward
from crosspipe.problem import BlockCost, BlockCosts, Spread
from crosspipe.problem.spread import FEWEST
from crosspipe.profile.block_memory import BlockMemory, block_memory
from crosspipe.profile.block_samples import Samples, StageData, believed, joined, time_after_pipeline, time_blocks

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
    progress: Progress | None = None,
) -> BlockCosts:
    """The model's BlockCosts on this machine, `origin` "measured".

    `split` is the decoder layers per (stage, chunk) along `traversal`. Each (stage, chunk) is timed `repetitions`
    times, or until its share of `budget_s` is used (at least 6 times, else there is no interval). The stages are gone
    through in `passes`, one stage in memory at a time, so that a machine that slows down meanwhile does so for all
    (None: 3 on the CPU, 1 on a GPU of one's own). `threads` are torch's on the CPU, as the run will have them. Raises
    FieldError naming stage and block for samples that are no durations, and for a module that holds memory when a
    microbatch is done.
    """
    device = torch.device(device)
    check_split(config, split, traversal)
    passes = (1 if device.type == "cuda" else PASSES_ON_CPU) if passes is None else passes
    _check_options(device, repetitions, budget_s, passes, threads)
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
                seen[stage].append(
                    _profile_stage(
                        stage, modules, -(-repetitions // passes), -(-FEWEST // passes), budget_s / total, seed
                    )
                )
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
        environment=_environment(device, threads),
    )


class _StagePass(NamedTuple):
    """What one pass measures on one stage; `blocks` and `memory` per chunk."""

    blocks: list[Samples]
    memory: list[BlockMemory]
    after: Samples
    parameter_bytes: int


def _profile_stage(
    stage: int, modules: Sequence[DecoderStage], repetitions: int, fewest: int, budget_s: float, seed: int
) -> _StagePass:
    blocks, memory = [], []
    for chunk, module in enumerate(modules):
        wrapped, data = SplitBackward(module), StageData(module, seed)
        blocks.append(time_blocks(wrapped, data, repetitions, fewest, budget_s))
        tracker = memory_tracker(data.device)
        memory.append(block_memory(f"s{stage}.c{chunk}", wrapped, tracker, data.received, data.gradient))
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return _StagePass(blocks, memory, time_after_pipeline(parameters, repetitions), sum(p.nbytes for p in parameters))


def _cost(place: str, spreads: dict[str, Spread], memory: BlockMemory) -> BlockCost:
    forward, input_grad, weight_grad, fused = (round(spreads[f"{place}.{kind}"].median) for kind in "FDWB")
    return BlockCost(
        forward_ns=forward,
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        fused_backward_ns=fused,
        forward_keep_bytes=memory.after_forward,
        input_grad_take_bytes=memory.input_grad_take,
        input_grad_release_bytes=memory.input_grad_release,
        weight_grad_release_bytes=memory.after_input_grad,
        forward_message_bytes=memory.forward_message,
        backward_message_bytes=memory.backward_message,
    )


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if arguments is None and not ALLOCATOR_ENVIRONMENT.keys() <= os.environ.keys():
        # read by the C library before Python starts
        again = [sys.executable, "-m", "crosspipe.profile.blocks", *sys.argv[1:]]
        os.execve(sys.executable, again, ALLOCATOR_ENVIRONMENT | os.environ)
    try:
        config = _read_model(options.model)
        explicit = None if options.layers is None else _read_layers(options.layers)
        split = split_model(config, options.stages, options.chunks, traversal=options.traversal, explicit=explicit)
        costs = profile_blocks(
            config,
            split,
            traversal=options.traversal,
            device=options.device,
            repetitions=options.repetitions,
            budget_s=options.budget_s,
            seed=options.seed,
            threads=options.threads,
            progress=lambda done, total, what: print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True),
        )
        _print_table(costs)
        if options.out is not None:
            from crosspipe.store import save

            options.out.mkdir(parents=True, exist_ok=True)
            print(f"written: {save(options.out / 'blocks.json', costs)}")
    except CrosspipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m crosspipe.profile.blocks",
        description="Time the blocks (F, D, W, B) of a model per stage, and count their memory and message bytes.",
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="YAML with the model's architecture (conf/model/*.yaml)"
    )
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--chunks", type=int, default=1, help="model parts per stage (default 1)")
    parser.add_argument("--traversal", default="ud", help="ud, loop or wave (default ud)")
    parser.add_argument("--layers", help="decoder layers per stage: 8,7,8,7, or 2+1,2+1 with chunks (default: even)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda[:N] (default cpu)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads on the CPU (default 1)")
    parser.add_argument("--repetitions", type=int, default=40, help="samples per block (default 40)")
    parser.add_argument("--budget-s", type=float, default=6.0, help="seconds for all stages together (default 6)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="directory for blocks.json")
    return parser


def _read_model(path: Path) -> ModelConfig:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=ModelConfig, strict=False)  # YAML 1.1 reads 1e-6 as text
    except OSError as error:
        raise UsageError(
            "--model", str(path), error.strerror or "cannot be read", "give a file of conf/model"
        ) from None
    except msgspec.DecodeError as error:
        raise UsageError("--model", str(path), str(error), "give the keys of conf/model/tiny.yaml") from None


def _read_layers(text: str) -> list[list[int]]:
    try:
        return [[int(count) for count in stage.split("+")] for stage in text.split(",")]
    except ValueError:
        raise UsageError("--layers", text, "is no list of counts", "write 8,7,8,7, or 2+1,2+1 with chunks") from None


def _print_table(costs: BlockCosts) -> None:
    times = "".join(f"{f'{kind} in ms [95 %]':>24}" for kind in "FDWB")
    print(f"{'block':<7}{times}{'kept MiB':>10}{'after D':>9}{'sent KiB':>10}")
    for stage, row in enumerate(costs.blocks):
        for chunk, cost in enumerate(row):
            name = f"s{stage}.c{chunk}"
            times = ""
            for kind in "FDWB":
                found = costs.spreads[f"{name}.{kind}"]
                low, high = (math.nan if end is None else end / 1e6 for end in (found.low, found.high))
                times += f"{f'{found.median / 1e6:.2f} [{low:.2f}, {high:.2f}]':>24}"
            kept, later = cost.forward_keep_bytes / 2**20, cost.weight_grad_release_bytes / 2**20
            print(f"{name:<7}{times}{kept:>10.2f}{later:>9.2f}{cost.forward_message_bytes / 1024:>10.0f}")


if __name__ == "__main__":
    sys.exit(main())
