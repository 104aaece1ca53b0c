"""Ping-pong over gloo, the transport of a run on CPUs: torch.distributed, started from inside the MPI job.

MPI carries only the address of the meeting point. Imported only where gloo is asked for; importing it loads torch.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from crosspipe.errors import FieldError

TIMEOUT = timedelta(seconds=60)


class GlooChannel:
    """`crosspipe.profile.pingpong.Channel` over torch.distributed's gloo, messages up to `largest_bytes`."""

    name = "gloo"

    def __init__(self, largest_bytes: int) -> None:
        self._out = torch.ones(largest_bytes, dtype=torch.uint8)
        self._in = torch.ones(largest_bytes, dtype=torch.uint8)

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        out, into, clock = self._out[:size_bytes], self._in[:size_bytes], time.monotonic_ns
        trips = []
        for _ in range(count):
            receive = dist.irecv(into, peer)
            start = clock()
            dist.send(out, peer)
            receive.wait()
            trips.append(clock() - start)
        return trips

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        out, into = self._out[:size_bytes], self._in[:size_bytes]
        receive = dist.irecv(into, peer)
        for left in range(count, 0, -1):
            receive.wait()
            if left > 1:
                receive = dist.irecv(into, peer)
            dist.send(out, peer)


def start_gloo(comm: MPI.Comm, hosts: list[str]) -> None:
    """Joins all ranks of `comm` (rank r on `hosts[r]`) in one gloo group; rank 0's host and port go round over MPI.

    Raises FieldError where this host's name leads to its loopback, which the other hosts cannot reach.
    """
    torch.set_num_threads(1)
    alone = len(set(hosts)) == 1
    if not alone and "GLOO_SOCKET_IFNAME" not in os.environ:
        address = socket.gethostbyname(socket.gethostname())
        if address.startswith("127."):
            raise FieldError(
                "GLOO_SOCKET_IFNAME",
                None,
                f"{socket.gethostname()} resolves to {address}, which other nodes cannot reach",
                "export GLOO_SOCKET_IFNAME=<the network interface between the nodes>",
            )
    meeting = "127.0.0.1" if alone else hosts[0]
    port = np.zeros(1, dtype=np.int64)
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(meeting, 0, comm.size, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
        port[0] = store.port
    comm.Bcast(port)
    if store is None:
        store = dist.TCPStore(meeting, int(port[0]), comm.size, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=TIMEOUT)


def stop_gloo() -> None:
    """Leaves the group."""
    dist.destroy_process_group()
