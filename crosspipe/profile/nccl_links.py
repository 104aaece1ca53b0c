"""Ping-pong and windows in device memory over NCCL, the transport of a run on GPUs.

NCCL ignores tags and queues transfers on a stream: what is exchanged is the same in order on both sides, several
messages at once go as one batch, and a repetition ends when the device has caught up. The order is tested over gloo;
on GPUs this has not been run yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from crosspipe.profile.pingpong import slots
from crosspipe.profile.places import Place, device_of


class DeviceChannel:
    """`crosspipe.profile.pingpong.Channel` over an ordered group, messages up to `largest_bytes`.

    `synchronize` waits for the device.
    """

    name = "nccl"

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, largest_bytes: int, synchronize: Callable[[], None]
    ) -> None:
        self._group, self._synchronize = group, synchronize
        self._out = torch.ones(largest_bytes, dtype=torch.uint8, device=device)
        self._in = torch.ones(largest_bytes, dtype=torch.uint8, device=device)
        self._byte = torch.ones(1, dtype=torch.uint8, device=device)

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        def there_and_back() -> None:
            dist.send(self._out[:size_bytes], peer, group=self._group)
            dist.recv(self._in[:size_bytes], peer, group=self._group)

        return [self._timed(there_and_back) for _ in range(count)]

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        for _ in range(count):
            dist.recv(self._in[:size_bytes], peer, group=self._group)
            dist.send(self._out[:size_bytes], peer, group=self._group)
        self._synchronize()

    def stream(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> list[int]:
        def window_and_back() -> None:
            if both:
                dist.send(self._byte, peer, group=self._group)
            self._batch(peer, size_bytes, sends=window, receives=window if both else 0)
            dist.recv(self._byte, peer, group=self._group)

        return [self._timed(window_and_back) for _ in range(count)]

    def drain(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> None:
        for _ in range(count):
            if both:
                dist.recv(self._byte, peer, group=self._group)
            self._batch(peer, size_bytes, sends=window if both else 0, receives=window)
            dist.send(self._byte, peer, group=self._group)
        self._synchronize()

    def _timed(self, exchange: Callable[[], None]) -> int:
        self._synchronize()
        start = time.monotonic_ns()
        exchange()
        self._synchronize()
        return time.monotonic_ns() - start

    def _batch(self, peer: int, size_bytes: int, *, sends: int, receives: int) -> None:
        out = self._out[:size_bytes]
        operations = [dist.P2POp(dist.isend, out, peer, self._group) for _ in range(sends)]
        operations += [
            dist.P2POp(dist.irecv, slot, peer, self._group) for slot in slots(self._in, size_bytes, receives)
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def start_nccl(rank: int, places: Sequence[Place], largest_bytes: int) -> DeviceChannel:
    """The channel of this rank; all ranks must have joined the default group (`crosspipe.profile.gloo_links`)."""
    device = torch.device("cuda", device_of(rank, places, torch.cuda.device_count(), "nccl"))
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl")
    # all ranks must take part in a group's first operation, and a pair alone would be it
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    torch.cuda.synchronize(device)
    return DeviceChannel(group, device, largest_bytes, lambda: torch.cuda.synchronize(device))
