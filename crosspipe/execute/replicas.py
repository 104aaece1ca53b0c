"""What the engine asks of data parallelism and of the optimizer; who does it is handed to the engine.

The plan says when a chunk's gradients are reduced over the replicas of its stage and when its parameters are gathered
(ZeRO-1); the engine starts that through `Replicas` and goes on with its blocks. Everything after the last block, the
gradient norm apart, is `Step`'s. `PlainStep` is one replica with one optimizer.
"""

from __future__ import annotations

from typing import Protocol

import torch

from crosspipe.model.optimizer import clip_gradients, square_of_gradients


class Replicas(Protocol):
    """The ranks that hold the same stage in other pipelines. All replicas of a stage make these calls in one order."""

    def gather(self, chunk: int) -> None:
        """Starts to collect the chunk's parameters from the replicas and returns at once."""

    def reduce(self, chunk: int) -> None:
        """Starts to average the chunk's gradients over the replicas and returns at once."""

    def wait(self, chunk: int | None = None) -> None:
        """Blocks until what was started for the chunk (None: everything) is done; PeerLost after the time-out."""


class Step(Protocol):
    """What an iteration begins and ends with on a rank: its gradients and its optimizer."""

    def begin(self) -> None:
        """Before the first block: there are no gradients."""

    def square(self) -> float:
        """This rank's share of the squared global gradient norm: over all ranks each parameter counts once."""

    def clip(self, square: float, largest: float) -> float:
        """Scales the gradients so that the global norm, sqrt(`square`), is at most `largest`; returns the factor."""

    def update(self) -> None:
        """The optimizer step."""


class PlainStep:
    """One replica, one optimizer that holds all of the rank's parameters; see `Step`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def begin(self) -> None:
        """See `Step`."""
        self.optimizer.zero_grad(set_to_none=True)

    def square(self) -> float:
        """See `Step`."""
        return float(square_of_gradients(self.parameters))

    def clip(self, square: float, largest: float) -> float:
        """See `Step`."""
        norm = float(clip_gradients(self.parameters, torch.tensor(square), largest))
        return min(1.0, largest / (norm + 1e-6))

    def update(self) -> None:
        """See `Step`."""
        self.optimizer.step()
