"""Sums and gathers among some of the ranks: what data parallelism and tied embeddings need of a transport.

A `Group` is the ranks that hold the same parameters. `DistGroup` is one of torch.distributed (gloo or NCCL); that all
its members call it in the same order is the caller's duty.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from crosspipe.execute.failure import PeerLost, first_sentence


class Pending(Protocol):
    """A collective on its way."""

    def wait(self) -> None:
        """Until its result is there; PeerLost if a member does not come within the time-out."""


class Group(Protocol):
    """This rank's place among the members, and their collectives; each returns at once."""

    size: int
    index: int

    def sum(self, tensor: Tensor) -> Pending:
        """Puts the sum over the members into every member's `tensor`, the same bits everywhere."""

    def sum_shards(self, tensor: Tensor, shard: Tensor) -> Pending:
        """Puts part number `index` of the sum of `tensor` (1-D, `size` equal parts) into `shard`."""

    def gather(self, tensor: Tensor, shard: Tensor) -> Pending:
        """Puts every member's `shard` into its part of everyone's `tensor`."""


class DistGroup:
    """Members by their ranks in the default process group. Making one is collective over *all* ranks, members or not.

    `timeout_s` bounds every wait; it may be changed, by all members at the same place. `opening_s` bounds the meeting
    at which the group is made (default: as a wait): not all ranks are equally far in setting up. PeerLost after it.
    """

    backend = "gloo"

    def __init__(self, ranks: Sequence[int], *, timeout_s: float, opening_s: float | None = None) -> None:
        self.ranks, self.timeout_s, self.size = tuple(ranks), timeout_s, len(ranks)
        opening = timedelta(seconds=timeout_s if opening_s is None else opening_s)
        try:
            self._group = dist.new_group(list(ranks), backend=self.backend, timeout=opening)
        except (RuntimeError, dist.DistError) as error:
            said = ", ".join(map(str, ranks))
            raise PeerLost(-1, f"the group of ranks {said} could not be opened: {first_sentence(error)}") from error
        rank = dist.get_rank()
        self.index = self.ranks.index(rank) if rank in self.ranks else -1

    def wait(self, work: dist.Work) -> None:
        """Until a collective of this group is done."""
        work.wait(timedelta(seconds=self.timeout_s))

    def sum(self, tensor: Tensor) -> Pending:
        """See `Group`."""
        return _Pending(self, dist.all_reduce(tensor, group=self._group, async_op=True))

    def sum_shards(self, tensor: Tensor, shard: Tensor) -> Pending:
        """See `Group`."""
        return _Pending(self, dist.reduce_scatter_tensor(shard, tensor, group=self._group, async_op=True))

    def gather(self, tensor: Tensor, shard: Tensor) -> Pending:
        """See `Group`."""
        return _Pending(self, dist.all_gather_into_tensor(tensor, shard, group=self._group, async_op=True))


class _Pending:
    def __init__(self, group: DistGroup, work: dist.Work | None) -> None:
        assert work is not None  # None is for those outside the group
        self._group, self._work = group, work

    def wait(self) -> None:
        """See `Pending`."""
        try:
            self._group.wait(self._work)
        except RuntimeError as error:
            others = ", ".join(map(str, self._group.ranks))
            reason = first_sentence(error)
            raise PeerLost(-1, f"ranks {others} could not exchange gradients or parameters: {reason}") from error


def flat(tensors: Sequence[Tensor], *, parts: int = 1) -> Tensor:
    """One 1-D tensor of all values, with zeros at the end so that it can be cut into `parts` equal ones."""
    values = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    missing = -len(values) % parts
    return torch.nn.functional.pad(values, (0, missing)) if missing else values
