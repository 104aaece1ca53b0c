"""Where the block costs of a point come from: `conf/costs/`. Measured, or given or counted for other machines.

A point whose costs are not measured needs no profile and no link inside a site; it ends with its schedule, or with a
paced run of a stand-in. So the experiments that a paper simulates, and a plan for a machine nobody has yet, take the
same road as everything else.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from crosspipe.errors import UsageError
from crosspipe.problem import BlockCost, BlockCosts
from crosspipe.problem.analytic import analytic_costs
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.costs import split
from crosspipe.problem.layers import Split, split_model
from crosspipe.problem.traversal import position_of

MIB = 2**20
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_GIVEN = ("forward_ms", "input_grad_ms", "weight_grad_ms")
STAND_IN_END_NS = 20_000_000  # the gradient norm, and the optimizer step, of a stand-in last: enough on a busy core


class CostsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`measured`: profiled here. `given`: F, D, W of one stage and microbatch in ms, the same for every stage, shared
    evenly by its chunks. `analytic`: counted from the model, at what one of `tensor_parallel` devices sustains.

    A given stage keeps `activation_mib` for a microbatch and sends messages of `message_mib`; D returns half of it, W
    the rest. `recompute`: F keeps a stage's input only, D runs F again.
    """

    name: str = "measured"
    source: Literal["measured", "given", "analytic"] = "measured"
    forward_ms: _NotNegative | None = None
    input_grad_ms: _NotNegative | None = None
    weight_grad_ms: _NotNegative | None = None
    activation_mib: _Positive = 1.0
    message_mib: _Positive = 1.0
    tflop_per_s: _Positive | None = None
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1)] = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        needed = {"given": _GIVEN, "analytic": ("tflop_per_s",), "measured": ()}[self.source]
        for name in needed:
            if getattr(self, name) is None:
                raise UsageError(f"costs.{name}", None, f"is missing with costs.source={self.source}", "give it")
        for name in (*_GIVEN, "tflop_per_s"):
            if name not in needed and getattr(self, name) is not None:
                raise UsageError(
                    f"costs.{name}", getattr(self, name), f"means nothing with costs.source={self.source}", "remove it"
                )
        if self.source == "measured" and self.recompute:
            raise UsageError(
                "costs.recompute", True, "the decoder here does not recompute", "use given or analytic costs"
            )

    @property
    def measured(self) -> bool:
        """Whether blocks and links are profiled, so that a run can follow."""
        return self.source == "measured"


def make_costs(costs: CostsConfig, model: ModelConfig, traversal: str, layers: Split) -> BlockCosts:
    """The BlockCosts that `costs` (given or analytic) means for a model split into `layers` along `traversal`."""
    if costs.source == "analytic":
        assert costs.tflop_per_s is not None
        return analytic_costs(
            model, layers, traversal=traversal, flops_per_s=costs.tflop_per_s * 1e12,
            tensor_parallel=costs.tensor_parallel, recompute=costs.recompute,
        )  # fmt: skip
    stages, chunks = len(layers), len(layers[0])
    rows = [
        [_given(costs, traversal, stages, chunks, stage, chunk) for chunk in range(chunks)] for stage in range(stages)
    ]
    return BlockCosts(traversal=traversal, blocks=tuple(map(tuple, rows)), layers=layers, origin="given")


def _given(costs: CostsConfig, traversal: str, stages: int, chunks: int, stage: int, chunk: int) -> BlockCost:
    position, message = position_of(traversal, stages, stage, chunk), round(costs.message_mib * MIB)
    forward, input_grad, weight_grad = (split(round((getattr(costs, n) or 0.0) * 1e6), chunk, chunks) for n in _GIVEN)
    keep = split(round(costs.activation_mib * MIB), chunk, chunks)
    cost = BlockCost(
        forward_ns=forward,
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        forward_keep_bytes=keep,
        input_grad_release_bytes=keep // 2,
        weight_grad_release_bytes=keep - keep // 2,
        forward_message_bytes=message if position + 1 < stages * chunks else 0,
        backward_message_bytes=message if position > 0 else 0,
    )
    return cost.recomputed(message) if costs.recompute else cost


def stand_in(model: ModelConfig, stages: int, chunks: int, traversal: str) -> tuple[ModelConfig, Split]:
    """What a paced run trains in the place of `model` where block costs are not measured, and its split.

    A layer for every (stage, chunk), so narrow that its arithmetic fits into blocks made to last as the costs say.
    """
    small = ModelConfig(
        name=f"stand-in for {model.name}", vocabulary=256, hidden=64, intermediate=176, heads=4, kv_heads=2,
        layers=stages * chunks, sequence=32,
    )  # fmt: skip
    return small, split_model(small, stages, chunks, traversal=traversal)
