"""The command that makes a model's BlockCosts: `python -m crosspipe.profile.blocks --model FILE --stages N`.

It measures them (`crosspipe.profile.block_profile`), or, with `--estimate true`, counts and computes them
(`crosspipe.profile.estimate`), prints a table and writes `blocks.json`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.model.config import ALLOCATOR_ENVIRONMENT, ModelConfig, Split, split_model
from crosspipe.problem import BlockCost, BlockCosts
from crosspipe.problem.costs import Kernel
from crosspipe.profile.block_profile import profile_blocks
from crosspipe.profile.estimate import estimate_blocks
from crosspipe.profile.nodes import node_name

__all__ = ["main", "profile_blocks"]

SHOWN = 4  # operators of a block in the printed table


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
        costs = (_estimated if options.estimate else _measured)(config, split, options)
        _print_table(costs)
        if options.out is not None:
            from crosspipe.store import save

            options.out.mkdir(parents=True, exist_ok=True)
            name = f"blocks.{node_name()}.json" if options.per_node else "blocks.json"
            print(f"written: {save(options.out / name, costs)}")
    except CrosspipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def own_device(environ: Mapping[str, str], devices: int) -> str:
    """The GPU of a task, of the `devices` it sees: the one with its number on the node, or the only one."""
    return f"cuda:{0 if devices == 1 else environ.get('SLURM_LOCALID', '0')}"


def _measured(config: ModelConfig, split: Split, options: argparse.Namespace) -> BlockCosts:
    device = options.device
    if options.per_node and device == "cuda":  # each task of a node has a device of its own
        import torch

        device = own_device(os.environ, torch.cuda.device_count())
    return profile_blocks(
        config,
        split,
        traversal=options.traversal,
        device=device,
        repetitions=options.repetitions,
        budget_s=options.budget_s,
        seed=options.seed,
        threads=options.threads,
        recompute=options.recompute,
        kernels=options.kernels,
        progress=lambda done, total, what: print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True),
    )


def _estimated(config: ModelConfig, split: Split, options: argparse.Namespace) -> BlockCosts:
    rate = options.memory_gbyte_per_s
    return estimate_blocks(
        config,
        split,
        traversal=options.traversal,
        device=options.device,
        flops_per_s=None if options.tflop_per_s is None else options.tflop_per_s * 1e12,
        memory_bytes_per_s=None if rate is None else rate * 1e9,
        tensor_parallel=options.tensor_parallel,
        recompute=options.recompute,
        threads=options.threads,
    )


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
    parser.add_argument("--recompute", type=_yes, default=False, help="F keeps its input, D runs F again (true, false)")
    parser.add_argument("--kernels", type=_yes, default=True, help="add the table of operators (true, false)")
    parser.add_argument("--estimate", type=_yes, default=False, help="count and compute instead of measuring")
    parser.add_argument("--tflop-per-s", type=float, help="to estimate: what one device sustains (default: measured)")
    parser.add_argument(
        "--memory-gbyte-per-s", type=float, help="to estimate: memory of one device; none: no optimizer"
    )
    parser.add_argument("--tensor-parallel", type=int, default=1, help="to estimate: devices of one stage (default 1)")
    parser.add_argument("--out", type=Path, help="directory for blocks.json")
    parser.add_argument("--per-node", type=_yes, default=False, help="write blocks.NODE.json (crosspipe.profile.nodes)")
    return parser


def _yes(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: use true or false")
    return text.lower() == "true"


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
    print(f"{'block':<7}{times}{'kept MiB':>10}{'after D':>9}{'sent KiB':>10}   {costs.origin}")
    for stage, row in enumerate(costs.blocks):
        for chunk, cost in enumerate(row):
            name = f"s{stage}.c{chunk}"
            times = "".join(f"{_time(costs, name, kind, cost):>24}" for kind in "FDWB")
            kept, later = cost.forward_keep_bytes / 2**20, cost.weight_grad_release_bytes / 2**20
            print(f"{name:<7}{times}{kept:>10.2f}{later:>9.2f}{cost.forward_message_bytes / 1024:>10.0f}")
    for name, table in costs.kernels.items():
        rows = ", ".join(f"{kernel.operator} {kernel.share:.0%}{_rate(kernel)}" for kernel in table[:SHOWN])
        print(f"{name:<7}{rows}")


def _time(costs: BlockCosts, name: str, kind: str, cost: BlockCost) -> str:
    found = costs.spreads.get(f"{name}.{kind}")
    if found is None:
        return f"{cost.duration_ns(kind) / 1e6:.2f}"
    low, high = (math.nan if end is None else end / 1e6 for end in (found.low, found.high))
    return f"{found.median / 1e6:.2f} [{low:.2f}, {high:.2f}]"


def _rate(kernel: Kernel) -> str:
    return "" if kernel.flops_per_s is None else f" ({kernel.flops_per_s / 1e9:.4g} GFLOP/s)"


if __name__ == "__main__":
    sys.exit(main())
