"""The mathematics of one rank's blocks: what a block computes from the message it uses.

No time, no transport: `crosspipe.execute.engine` decides when, `crosspipe.model` how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from crosspipe.execute.plan import RankPlan
from crosspipe.problem import Problem
from crosspipe.schedule.order import Block


class Stage(Protocol):
    """What the engine needs of a (stage, chunk): see `crosspipe.model.SplitBackward`."""

    stage: nn.Module

    def forward(self, mb: int, x: Tensor, target: Tensor | None = None, *, fused: bool = False) -> Tensor: ...
    def input_grad(self, mb: int, grad: Tensor | None) -> Tensor | None: ...
    def weight_grad(self, mb: int, piece: int = 0, pieces: int = 1) -> None: ...
    def backward(self, mb: int, grad: Tensor | None) -> Tensor | None: ...


Batch = Callable[[int, int], tuple[Tensor, Tensor]]  # (iteration, microbatch) -> input of the model, target


def fused_in(plan: RankPlan) -> frozenset[tuple[int, int]]:
    """The (chunk, microbatch) whose backward is a B in this plan."""
    blocks = (action.block for action in plan.actions if action.block is not None)
    return frozenset((block.chunk, block.microbatch) for block in blocks if block.kind == "B")


class Mathematics(NamedTuple):
    """The blocks of one rank under its plan; `stages[chunk]`, `fused` as `fused_in` has it."""

    problem: Problem
    rank: int
    stages: Sequence[Stage]
    batch: Batch
    fused: frozenset[tuple[int, int]]

    def run(self, iteration: int, block: Block, tensor: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Computes a block from the tensor of the message it uses: (what goes to another position, loss)."""
        kind, chunk, microbatch, piece, pieces = block
        stage = self.stages[chunk]
        if kind == "F":
            position = self.problem.position(self.rank, chunk)
            last = position == self.problem.positions - 1
            tokens, target = self.batch(iteration, microbatch) if position == 0 or last else (None, None)
            output = stage.forward(
                microbatch,
                tokens if position == 0 else tensor,
                target if last else None,
                fused=(chunk, microbatch) in self.fused,
            )
            return (None, output) if last else (output, None)
        if kind == "W":
            stage.weight_grad(microbatch, piece, pieces)
            return None, None
        return (stage.input_grad if kind == "D" else stage.backward)(microbatch, tensor), None
