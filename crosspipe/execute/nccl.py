"""Channels over NCCL: the tensors of a run on GPUs. Everything else (meetings, clocks) goes over gloo beside it.

A channel is (source rank, target rank), first in, first out. NCCL gives every pair of ranks one stream per process
group, so that a send and a receive with the same peer would wait for each other: messages to higher ranks and to lower
ranks therefore have a group each. Nothing here blocks the host. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from crosspipe.errors import FieldError
from crosspipe.execute.groups import DistGroup


class NcclChannels:
    """This rank's channels. Making them is collective; the default process group must be there.

    `first` is added to the number of every peer: the ranks of this pipeline's replica. `timeout_s` is NCCL's own
    watchdog: after it the process of a rank whose peer is gone ends.
    """

    def __init__(self, *, first: int, timeout_s: float) -> None:
        check_nccl()
        self._first, self._rank = first, dist.get_rank()
        # without a device_id: an eagerly made communicator has one stream for all its peers
        self._up, self._down = (dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout_s)) for _ in range(2))

    def connect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Opens the channels (source, target) of this pipeline. All its ranks give the same ones.

        NCCL opens a channel with its first message, and each end blocks its host until the other is there. In the
        middle of a plan, which posts receives ahead, two ranks could so wait for each other; one after the other in one
        order for all, they cannot.
        """
        header, body = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2))
        for source, target in sorted(pairs):
            if self._rank == self._first + source:
                self.send(target, header, body)
            if self._rank == self._first + target:
                for work in self.receive(source, header, body):
                    work.wait()
            torch.cuda.synchronize()

    def send(self, target: int, header: Tensor, tensor: Tensor) -> None:
        """Sends behind the current stream, which then waits until both have left."""
        group = self._group(self._rank, self._first + target)
        for part in (header, tensor.contiguous()):
            work = dist.isend(part, dst=self._first + target, group=group)
            assert work is not None
            work.wait()

    def receive(self, source: int, header: Tensor, buffer: Tensor) -> list[dist.Work]:
        """Posts a receive behind the current stream; the stream that is current at `wait()` of all waits for it."""
        group = self._group(self._first + source, self._rank)
        works = [dist.irecv(part, src=self._first + source, group=group) for part in (header, buffer)]
        return [work for work in works if work is not None]

    def _group(self, source: int, target: int) -> dist.ProcessGroup:
        return self._up if target > source else self._down


class NcclGroup(DistGroup):
    """Sums and gathers over NCCL; see `crosspipe.execute.groups.DistGroup`."""

    backend = "nccl"

    def wait(self, work: dist.Work) -> None:
        """The current stream waits, not the host: that is what a time-out here would make it do."""
        work.wait()


def check_nccl() -> None:
    """FieldError in one line where torch was built without NCCL or there is no GPU."""
    if not dist.is_nccl_available() or not torch.cuda.is_available():
        missing = "no CUDA device here" if dist.is_nccl_available() else "torch was built without NCCL"
        raise FieldError("run.transport", "nccl", missing, "use gloo, or run where GPUs are")
