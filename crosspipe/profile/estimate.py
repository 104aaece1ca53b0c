"""BlockCosts of a model that does not fit here, or of a device that is not here: bytes counted, times computed.

Bytes on the CPU are exact without the memory: the real modules run F, D and W on fake tensors, which have shapes and no
data. A GPU's kernels keep other tensors than the CPU's, so for `cuda` they come from the analytic model, as do all
times. `origin` says "estimated"; nothing here claims to be measured.
"""

from __future__ import annotations

import time
from statistics import median

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from crosspipe.model.config import ModelConfig, Split
from crosspipe.model.decoder import DecoderStage, build_stage
from crosspipe.model.memory import StorageTracker
from crosspipe.model.split_backward import SplitBackward
from crosspipe.problem import BlockCost, BlockCosts
from crosspipe.problem.analytic import analytic_costs
from crosspipe.profile.block_memory import BlockMemory, block_memory
from crosspipe.profile.block_samples import StageData

PRODUCT = 1024  # rows and columns of the matrices whose product tells this machine's rate
TRIES = 5


def estimate_blocks(
    config: ModelConfig,
    split: Split,
    *,
    traversal: str = "ud",
    device: str = "cpu",
    flops_per_s: float | None = None,
    memory_bytes_per_s: float | None = None,
    tensor_parallel: int = 1,
    recompute: bool = False,
    threads: int = 1,
) -> BlockCosts:
    """The model's BlockCosts, `origin` "estimated"; arguments as `crosspipe.problem.analytic.analytic_costs` has them.

    `flops_per_s` of one device; None: what a matrix product sustains here, on `threads` threads. Raises FieldError for
    a split that does not fit, or a rate that is none.
    """
    rate = sustained_flops_per_s(config.dtype, threads) if flops_per_s is None else flops_per_s
    costs = analytic_costs(
        config,
        split,
        traversal=traversal,
        flops_per_s=rate,
        tensor_parallel=tensor_parallel,
        memory_bytes_per_s=memory_bytes_per_s,
        recompute=recompute,
    )
    source = "from the analytic model"
    if device == "cpu" and not config.cost_only:
        costs = _with_counted_bytes(costs, config, split, traversal, recompute)
        source = "counted on fake tensors, with the CPU's kernels"
    environment = {
        **costs.environment,
        "flops_per_s": f"{rate:g} ({'a matrix product here' if flops_per_s is None else 'given'})",
        "device": device,
        "bytes": source,
        "times": "FLOPs over that rate",
    }
    return msgspec.structs.replace(costs, origin="estimated", environment=environment)


def sustained_flops_per_s(dtype: str, threads: int) -> float:
    """FLOP/s of a square matrix product on this CPU, the median of a few."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        factor = torch.randn(PRODUCT, PRODUCT).to(getattr(torch, dtype))
        took = []
        for _ in range(TRIES):
            start = time.perf_counter()
            factor @ factor
            took.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return 2 * PRODUCT**3 / median(took)


def _with_counted_bytes(
    costs: BlockCosts, config: ModelConfig, split: Split, traversal: str, recompute: bool
) -> BlockCosts:
    counted: dict[tuple[int, bool, bool], BlockMemory] = {}  # stages of the same make are the same
    memory = []
    for stage, row in enumerate(costs.blocks):
        memory.append([])
        for chunk in range(len(row)):
            module = build_stage(config, split, stage, chunk, traversal=traversal, device="meta")
            make = (split[stage][chunk], module.first, module.last)
            if make not in counted:
                counted[make] = counted_memory(module, recompute=recompute)
            memory[-1].append(counted[make])
    return msgspec.structs.replace(
        costs,
        blocks=tuple(tuple(map(_with_bytes, row, found)) for row, found in zip(costs.blocks, memory, strict=True)),
        workspace_bytes=tuple(tuple(one.workspace for one in row) for row in memory),
    )


def counted_memory(module: DecoderStage, *, recompute: bool = False) -> BlockMemory:
    """What the blocks of a stage built on the meta device hold on the CPU, to the byte; `module` becomes fake."""
    with FakeTensorMode():
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                setattr(part, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, torch.empty(buffer.shape, dtype=buffer.dtype))
        stage, data = SplitBackward(module, recompute=recompute), StageData(module, 0)
        stage.forward(0, *data.received())
        stage.backward(0, data.gradient())  # from here on, gradients exist
        return block_memory("estimated", stage, StorageTracker(), data.received, data.gradient)


def _with_bytes(cost: BlockCost, memory: BlockMemory) -> BlockCost:
    return msgspec.structs.replace(cost, **memory.fields())
