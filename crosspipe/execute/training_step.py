"""What training adds to a rank's blocks: replicas of the stage, tied embeddings, the global norm, and the AdamW step.

`TrainingStep` is both what the engine calls `Replicas` and what it calls `Step`. A chunk's gradients are summed over
the replicas in one flat message as soon as its last W is done; with ZeRO-1 (Rajbhandari et al., SC'20) every replica
gets only its shard of the sum, steps that, and parameters are collected before the next iteration's first F. A tied
matrix is summed over all ranks that hold a copy of it, so that the copies stay the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from crosspipe.execute.groups import Group, Pending, flat
from crosspipe.model.decoder import DecoderStage
from crosspipe.model.optimizer import clip_gradients, square_of_gradients

BuildOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


TIED_NAME = "embedding.weight"  # whichever end of the model a copy is on


class Tied(NamedTuple):
    """A matrix that several ranks hold: this rank's copy, and all of them, in all replicas."""

    weight: nn.Parameter
    group: Group


class TrainingStep:
    """One rank's gradients and optimizer, for `modules[chunk]`.

    `replicas` are the ranks with the same stage in other pipelines (None: there are none), `shard` turns on ZeRO-1
    among them. The loss of every replica must be scaled by 1/replicas, since gradients are summed. `parameters` gives
    them all by their global names.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        build_optimizer: BuildOptimizer,
        *,
        replicas: Group | None = None,
        shard: bool = False,
        tied: Tied | None = None,
    ) -> None:
        self.replicas, self.shard, self.tied = replicas, shard and replicas is not None, tied
        known = {id(tied.weight)} if tied is not None else set()
        self.parameters = [(TIED_NAME, tied.weight)] if tied is not None else []
        self._buckets = []
        for module in modules:
            pairs = [(name, p) for name, p in module.named_parameters() if id(p) not in known]
            known |= {id(p) for _, p in pairs}
            self.parameters += pairs
            self._buckets.append(_Bucket([p for _, p in pairs], replicas, self.shard))
        stepped = [p for bucket in self._buckets for p in bucket.stepped]
        # over all ranks each parameter counts once in the norm
        counted = stepped if self.shard or replicas is None or replicas.index == 0 else []
        shared = [] if tied is None else [tied.weight]
        self._counted = counted + shared if tied is not None and tied.group.index == 0 else counted
        self._stepped = stepped + shared
        self.optimizer = build_optimizer(self._stepped)

    def gather(self, chunk: int) -> None:
        """See `crosspipe.execute.replicas.Replicas`."""
        self._buckets[chunk].start_gather()

    def reduce(self, chunk: int) -> None:
        """See `crosspipe.execute.replicas.Replicas`."""
        self._buckets[chunk].start_reduce()

    def wait(self, chunk: int | None = None) -> None:
        """See `crosspipe.execute.replicas.Replicas`."""
        for bucket in self._buckets if chunk is None else [self._buckets[chunk]]:
            bucket.finish()

    def begin(self) -> None:
        """See `crosspipe.execute.replicas.Step`."""
        for _, parameter in self.parameters:
            parameter.grad = None
        self.optimizer.zero_grad(set_to_none=True)

    def square(self) -> float:
        """See `crosspipe.execute.replicas.Step`. The tied gradient is summed first."""
        self.wait()
        if self.tied is not None:
            weight, group = self.tied
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            group.sum(weight.grad).wait()
        return float(square_of_gradients(self._counted)) if self._counted else 0.0

    def clip(self, square: float, largest: float) -> float:
        """See `crosspipe.execute.replicas.Step`."""
        norm = float(clip_gradients(self._stepped, torch.tensor(square), largest))
        return min(1.0, largest / (norm + 1e-6))

    def update(self) -> None:
        """See `crosspipe.execute.replicas.Step`."""
        self.optimizer.step()

    def collect_gradients(self) -> None:
        """With ZeRO-1: puts the whole of every gradient back, for a comparison. Collective among the replicas."""
        for bucket in self._buckets:
            bucket.collect_gradients()

    def state(self) -> dict[str, Tensor]:
        """All that the next iteration depends on, by name: parameters (with ZeRO-1 this replica's part) and moments."""
        names = self._names()
        found = {f"parameter.{name}": p.detach() for name, p in zip(names, self._stepped, strict=True)}
        for name, p in zip(names, self._stepped, strict=True):
            found |= {f"{key}.{name}": value for key, value in self.optimizer.state[p].items()}
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """Puts back what `state` gave. Collective among the replicas with ZeRO-1."""
        kinds = {key.partition(".")[0] for key in state} - {"parameter"}  # exp_avg, exp_avg_sq, step
        with torch.no_grad():
            for name, p in zip(self._names(), self._stepped, strict=True):
                p.copy_(state[f"parameter.{name}"])
                self.optimizer.state[p] = {kind: state[f"{kind}.{name}"].to(p.device, copy=True) for kind in kinds}
        for bucket in self._buckets:
            bucket.start_gather()
            bucket.finish()

    def _names(self) -> list[str]:
        """The global name of each parameter that is stepped; a shard is called by its chunk."""
        names = {id(p): name for name, p in self.parameters}
        shards = {id(b.stepped[0]): f"shard.{i}" for i, b in enumerate(self._buckets) if b.is_sharded and b.stepped}
        return [(shards | names)[id(p)] for p in self._stepped]


def join_ends(modules: Sequence[DecoderStage]) -> nn.Parameter | None:
    """The tied matrix of the chunks on one rank, as one parameter even where both ends are here; None: neither is."""
    ends = [module for module in modules if module.tied_weight() is not None]
    if not ends:
        return None
    weight = ends[0].tied_weight()
    for module in ends[1:]:
        (module.embedding if module.first else module.output).weight = weight
    return weight


class _Bucket:
    """The parameters of one chunk, as one flat message. `stepped` is what the optimizer gets: them, or one shard."""

    def __init__(self, parameters: Sequence[nn.Parameter], replicas: Group | None, shard: bool) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.replicas, self.is_sharded = replicas, shard and bool(self.parameters)
        self.stepped: list[nn.Parameter] = self.parameters
        self._pending: tuple[Pending, Callable[[], None]] | None = None
        if self.is_sharded:
            assert replicas is not None
            self._values = flat(self.parameters, parts=replicas.size)
            _view(self._values, self.parameters, as_gradient=False)
            size = len(self._values) // replicas.size
            self.stepped = [nn.Parameter(self._values[replicas.index * size :][:size])]  # the same memory

    def start_gather(self) -> None:
        if self.is_sharded:
            assert self.replicas is not None
            # a copy: not every transport may read from where it writes
            self._start(self.replicas.gather(self._values, self.stepped[0].detach().clone()), lambda: None)

    def start_reduce(self) -> None:
        if self.replicas is None or not self.parameters:
            return
        sent = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        if not self.is_sharded:
            total = flat(sent)
            self._start(self.replicas.sum(total), lambda: _view(total, self.parameters, as_gradient=True))
            return
        values = flat(sent, parts=self.replicas.size)
        shard = torch.empty_like(self.stepped[0])

        def take() -> None:
            self.stepped[0].grad = shard

        for parameter in self.parameters:
            parameter.grad = None
        self._start(self.replicas.sum_shards(values, shard), take)

    def finish(self) -> None:
        if self._pending is not None:
            pending, then = self._pending
            self._pending = None
            pending.wait()
            then()

    def collect_gradients(self) -> None:
        if self.is_sharded:
            assert self.replicas is not None
            assert self.stepped[0].grad is not None
            values = torch.empty_like(self._values)
            self.replicas.gather(values, self.stepped[0].grad).wait()
            _view(values, self.parameters, as_gradient=True)

    def _start(self, pending: Pending, then: Callable[[], None]) -> None:
        self.finish()
        self._pending = pending, then


def _view(values: Tensor, parameters: Sequence[nn.Parameter], *, as_gradient: bool) -> None:
    """Lets the parameters, or their gradients, be consecutive parts of `values`."""
    at = 0
    for parameter in parameters:
        part = values[at : at + parameter.numel()].view(parameter.shape)
        at += parameter.numel()
        if as_gradient:
            parameter.grad = part
        else:
            parameter.data = part
