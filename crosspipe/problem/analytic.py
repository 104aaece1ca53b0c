"""BlockCosts without a measurement: from the architecture, and what one device sustains.

Durations are FLOPs over a rate; everything a real kernel loses (launches, elementwise work, tensor-parallel traffic)
belongs in that rate. A stage is a device or a tensor-parallel group, and all its bytes are the group's: with sequence
parallelism nothing is held twice. The costs say `origin` "analytic", and nothing here claims to be measured.
"""

from __future__ import annotations

from crosspipe.errors import FieldError
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.costs import BlockCost, BlockCosts
from crosspipe.problem.layers import Split, check_split, layer_range
from crosspipe.problem.traversal import position_of
from crosspipe.problem.work import TOKEN_BYTES, Work, embedding_work, layer_work, output_work, total

# passes over the parameters: the norm reads gradients, clipping reads and writes them; AdamW reads parameter, gradient
# and two moments and writes all but the gradient
NORM_PASSES = 3
OPTIMIZER_PASSES = 7


def analytic_costs(
    config: ModelConfig,
    split: Split,
    *,
    traversal: str = "ud",
    flops_per_s: float,
    tensor_parallel: int = 1,
    memory_bytes_per_s: float | None = None,
    recompute: bool = False,
    skip_masked: bool = True,
    fused_norms: bool = True,
) -> BlockCosts:
    """The model's BlockCosts for `split` along `traversal`.

    `flops_per_s` is what one of the `tensor_parallel` devices of a stage sustains. Gradient norm and optimizer step are
    limited by memory; they stay unknown (empty) without `memory_bytes_per_s` of one device. `recompute`: F keeps only
    the stage's input and D runs F again. `skip_masked`, `fused_norms`: see `crosspipe.problem.work.layer_work`.
    Raises FieldError naming what cannot be used.
    """
    check_split(config, split, traversal)
    for name, value in (("flops_per_s", flops_per_s), ("memory_bytes_per_s", memory_bytes_per_s)):
        if value is not None and not 0 < value < float("inf"):
            raise FieldError(name, value, "is not a finite rate > 0", "give what one device sustains, e.g. 5e14")
    if tensor_parallel < 1 or config.heads % tensor_parallel:
        raise FieldError(
            "tensor_parallel", tensor_parallel, f"cannot share {config.heads} heads", f"use a divisor of {config.heads}"
        )
    places = [[(stage, chunk) for chunk in range(len(split[0]))] for stage in range(len(split))]
    work = [
        [
            stage_work(config, split, traversal, *place, skip_masked=skip_masked, fused_norms=fused_norms)
            for place in row
        ]
        for row in places
    ]
    rate = flops_per_s * tensor_parallel
    parameter_bytes = tuple(config.dtype_bytes * sum(part.parameters for part in row) for row in work)
    after = None if memory_bytes_per_s is None else memory_bytes_per_s * tensor_parallel
    return BlockCosts(
        traversal=traversal,
        blocks=tuple(
            tuple(
                _block(config, part, position_of(traversal, len(split), *place), len(split) * len(row), rate, recompute)
                for place, part in zip(row, parts, strict=True)
            )
            for row, parts in zip(places, work, strict=True)
        ),
        gradient_norm_ns=_pass_ns(parameter_bytes, NORM_PASSES, after),
        optimizer_step_ns=_pass_ns(parameter_bytes, OPTIMIZER_PASSES, after),
        parameter_bytes=parameter_bytes,
        layers=split,
        origin="analytic",
        environment={
            "flops_per_s": f"{flops_per_s:g}",
            "tensor_parallel": str(tensor_parallel),
            "recompute": str(recompute).lower(),
        },
    )


def stage_work(
    config: ModelConfig,
    split: Split,
    traversal: str,
    stage: int,
    chunk: int,
    *,
    skip_masked: bool = True,
    fused_norms: bool = True,
) -> Work:
    """Work of one microbatch on (stage, chunk): its layers, and the embedding or output layer where they belong."""
    position = position_of(traversal, len(split), stage, chunk)
    parts = [
        layer_work(config, number, skip_masked=skip_masked, fused_norms=fused_norms)
        for number in layer_range(split, traversal, stage, chunk)
    ]
    if position == 0:
        parts.append(embedding_work(config))
    if position == len(split) * len(split[0]) - 1:
        parts.append(output_work(config, fused_norms=fused_norms))
    return total(parts)


def message_bytes(config: ModelConfig) -> int:
    """Bytes of one microbatch's activations (or their gradient) between two stages."""
    return config.tokens * config.hidden * config.dtype_bytes


def _block(
    config: ModelConfig, work: Work, position: int, positions: int, flops_per_s: float, recompute: bool
) -> BlockCost:
    def duration_ns(flops: int) -> int:
        return round(flops / flops_per_s * 1e9)

    cost = BlockCost(
        forward_ns=duration_ns(work.forward_flops),
        input_grad_ns=duration_ns(work.input_grad_flops),
        weight_grad_ns=duration_ns(work.weight_grad_flops),
        forward_keep_bytes=work.keep_bytes,
        input_grad_take_bytes=max(0, work.weight_bytes - work.keep_bytes),
        input_grad_release_bytes=max(0, work.keep_bytes - work.weight_bytes),
        weight_grad_release_bytes=work.weight_bytes,
        forward_message_bytes=message_bytes(config) if position + 1 < positions else 0,
        backward_message_bytes=message_bytes(config) if position > 0 else 0,
    )
    if not recompute:
        return cost
    return cost.recomputed(message_bytes(config) if position > 0 else config.tokens * TOKEN_BYTES)


def _pass_ns(parameter_bytes: tuple[int, ...], passes: int, bytes_per_s: float | None) -> tuple[int, ...]:
    if bytes_per_s is None:
        return ()
    return tuple(round(passes * size / bytes_per_s * 1e9) for size in parameter_bytes)
