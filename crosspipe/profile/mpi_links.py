"""Ping-pong and windows over MPI: host or device memory, persistent requests, buffers and never pickles.

MPI itself moves the bytes: a message is there when MPI says so, and no stream is waited for. Imported only inside an
MPI job. `wait_idle` lives here too: an MPI that waits spins, and would take the core from the pair that measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from crosspipe.profile.pingpong import slots
from crosspipe.profile.places import Place, device_of

PAYLOAD, COUNT, GO, LAST = 1, 2, 3, 4  # tags


def host_memory(size_bytes: int) -> Any:
    """A buffer of ones, not zeros: it was touched, so no page fault is timed."""
    return np.ones(size_bytes, dtype=np.uint8)


class MpiChannel:
    """`crosspipe.profile.pingpong.Channel` over an MPI communicator, messages up to `largest_bytes`.

    `memory` makes what holds them: an array of bytes that mpi4py takes, on the host or (by the CUDA array interface) on
    a device.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        largest_bytes: int,
        memory: Callable[[int], Any] = host_memory,
        name: str = "mpi",
    ) -> None:
        self._comm, self.name = comm, name
        self._out, self._in = memory(largest_bytes), memory(largest_bytes)
        self._byte = host_memory(1)

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        (send,) = self._sends(peer, size_bytes, 1)
        (receive,) = self._receives(peer, size_bytes, 1)
        clock, leave, arrive = time.monotonic_ns, send.Start, receive.Wait
        trips = []
        for _ in range(count):
            receive.Start()
            start = clock()
            leave()
            arrive()
            trips.append(clock() - start)
            send.Wait()  # the answer is there, so it is done
        _free([send, receive])
        return trips

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        (send,) = self._sends(peer, size_bytes, 1)
        (receive,) = self._receives(peer, size_bytes, 1)
        leave, arrive = send.Start, receive.Wait
        receive.Start()
        for left in range(count, 0, -1):
            arrive()
            leave()
            if left > 1:
                receive.Start()  # long before the next message: that one waits for this answer
            send.Wait()
        _free([send, receive])

    def stream(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> list[int]:
        sends = self._sends(peer, size_bytes, window)
        receives = [self._comm.Recv_init(self._byte, peer, LAST)]
        if both:
            sends.insert(0, self._comm.Send_init(self._byte, peer, GO))
            receives += self._receives(peer, size_bytes, window)
        clock, start_all, wait_all = time.monotonic_ns, MPI.Prequest.Startall, MPI.Request.Waitall
        trips = []
        for _ in range(count):
            start_all(receives)
            start = clock()
            start_all(sends)
            wait_all(sends + receives)
            trips.append(clock() - start)
        _free(sends + receives)
        return trips

    def drain(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> None:
        sends = self._sends(peer, size_bytes, window) if both else []
        receives = self._receives(peer, size_bytes, window)
        go = [self._comm.Recv_init(np.ones(1, dtype=np.uint8), peer, GO)] if both else []
        start_all, wait_all = MPI.Prequest.Startall, MPI.Request.Waitall
        start_all(receives + go)
        for left in range(count, 0, -1):
            wait_all(go)
            start_all(sends)
            wait_all(receives)
            if left > 1:
                start_all(receives + go)
            self._comm.Send(self._byte, peer, LAST)
            wait_all(sends)
        _free(sends + receives + go)

    def _sends(self, peer: int, size_bytes: int, window: int) -> list[MPI.Prequest]:
        return [self._comm.Send_init(self._out[:size_bytes], peer, PAYLOAD) for _ in range(window)]

    def _receives(self, peer: int, size_bytes: int, window: int) -> list[MPI.Prequest]:
        return [self._comm.Recv_init(slot, peer, PAYLOAD) for slot in slots(self._in, size_bytes, window)]


def _free(requests: list[MPI.Prequest]) -> None:
    for request in requests:
        request.Free()


def start_mpi_device(comm: MPI.Comm, places: Sequence[Place], largest_bytes: int) -> MpiChannel:
    """The channel of this rank's GPU. An MPI that does not know device memory ends the ranks at the first message."""
    import torch

    device = torch.device("cuda", device_of(comm.rank, places, torch.cuda.device_count(), "mpi_device"))
    torch.cuda.set_device(device)

    def device_memory(size_bytes: int) -> Any:
        buffer = torch.ones(size_bytes, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        return buffer

    return MpiChannel(comm, largest_bytes, device_memory, "mpi_device")


class MpiControl:
    """`crosspipe.profile.pingpong.Control` over the same communicator."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def tell(self, peer: int, count: int) -> None:
        self._comm.Send(np.array([count], dtype=np.int64), peer, COUNT)

    def hear(self, peer: int) -> int:
        count = np.empty(1, dtype=np.int64)
        self._comm.Recv(count, peer, COUNT)
        return int(count[0])


def wait_idle(comm: MPI.Comm) -> None:
    """A barrier that sleeps: ranks that rest leave their core to the pair that measures."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)
