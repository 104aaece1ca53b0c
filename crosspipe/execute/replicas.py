"""What the engine asks of data parallelism and of the optimizer; who does it is handed to the engine.

The plan says when a chunk's gradients are reduced over the replicas of its stage and when its parameters are gathered
(ZeRO-1); the engine starts that through `Replicas` and goes on with its blocks. Everything after the last block, the
gradient norm apart, is `Step`'s. `PlainStep` is one replica with one optimizer.
"""

from __future__ import annotations

from typing import Protocol

import torch

from crosspipe.execute.clock import Clock
from crosspipe.execute.emulation import Departure
from crosspipe.execute.trace import TracedMessage
from crosspipe.model.optimizer import clip_gradients, square_of_gradients
from crosspipe.problem import Problem
from crosspipe.schedule.order import Message


class Replicas(Protocol):
    """The ranks that hold the same stage in other pipelines. All replicas of a stage make these calls in one order."""

    def gather(self, chunk: int) -> None:
        """Starts to collect the chunk's parameters from the replicas and returns at once."""

    def reduce(self, chunk: int) -> None:
        """Starts to average the chunk's gradients over the replicas and returns at once."""

    def wait(self, chunk: int | None = None) -> None:
        """Blocks until what was started for the chunk (None: everything) is done; PeerLost after the time-out."""


class Beside:
    """The gathers and reductions of one iteration that run beside its blocks: when they count as done."""

    def __init__(self, problem: Problem, replicas: Replicas | None, clock: Clock, *, emulate: bool) -> None:
        self._problem, self._replicas, self.clock, self._emulate = problem, replicas, clock, emulate
        self._running: dict[Message, tuple[int, Departure]] = {}  # ready, planned life

    def start(self, message: Message, ready_ns: int, departure: Departure) -> None:
        """Starts it; its delay begins at `ready_ns`."""
        assert self._replicas is not None
        start = self._replicas.gather if message.kind == "gather" else self._replicas.reduce
        start(self._problem.place(message.position)[1])
        self._running[message] = ready_ns, departure

    def await_end(self, message: Message) -> TracedMessage:
        """Waits for the chunk's and for the planned arrival."""
        return self._await(message, self._problem.place(message.position)[1])

    def await_all(self) -> list[TracedMessage]:
        """Waits for everything that is still running."""
        return [self._await(message, None) for message in list(self._running)]

    def _await(self, message: Message, chunk: int | None) -> TracedMessage:
        assert self._replicas is not None
        ready, departure = self._running.pop(message)
        waited = self.clock.now()
        self._replicas.wait(chunk)
        received = resumed = self.clock.now()
        arrival = max(departure.arrival_ns, received)
        if self._emulate:
            arrival, resumed = departure.arrival_ns, self.clock.wait_until(departure.arrival_ns)
        return TracedMessage(message, ready, *departure[:2], arrival, waited, received, resumed, ready)


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
