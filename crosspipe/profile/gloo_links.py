"""Ping-pong and windows over gloo, the transport of a run on CPUs: torch.distributed, started from inside the MPI job.

MPI carries only the address of the meeting point. Imported only where gloo is asked for; importing it loads torch.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from crosspipe.errors import FieldError
from crosspipe.profile.pingpong import slots
from crosspipe.profile.places import Place

if TYPE_CHECKING:
    from mpi4py import MPI

MEETING = timedelta(seconds=60)  # for all ranks to come
WAIT = timedelta(hours=1)  # for a message: a window over a slow link takes minutes, and Slurm has the real limit
PAYLOAD, GO, LAST = 1, 2, 3  # tags
SIOCGIFADDR = 0x8915  # Linux: IPv4 address of an interface


class GlooChannel:
    """`crosspipe.profile.pingpong.Channel` over torch.distributed's gloo, messages up to `largest_bytes`."""

    name = "gloo"

    def __init__(self, largest_bytes: int) -> None:
        self._out = torch.ones(largest_bytes, dtype=torch.uint8)
        self._in = torch.ones(largest_bytes, dtype=torch.uint8)
        self._byte, self._go = (torch.ones(1, dtype=torch.uint8) for _ in range(2))

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

    def stream(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> list[int]:
        out, clock = self._out[:size_bytes], time.monotonic_ns
        trips = []
        for _ in range(count):
            works = [dist.irecv(self._byte, peer, tag=LAST)]
            if both:
                works += self._receives(peer, size_bytes, window)
            start = clock()
            if both:
                dist.send(self._go, peer, tag=GO)
            works += [dist.isend(out, peer, tag=PAYLOAD) for _ in range(window)]
            for work in works:
                work.wait()
            trips.append(clock() - start)
        return trips

    def drain(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> None:
        out = self._out[:size_bytes]

        def post() -> tuple[list[dist.Work], dist.Work | None]:
            go = dist.irecv(self._go, peer, tag=GO) if both else None
            return self._receives(peer, size_bytes, window), go

        receives, go = post()
        for left in range(count, 0, -1):
            sends = []
            if go is not None:
                go.wait()
                sends = [dist.isend(out, peer, tag=PAYLOAD) for _ in range(window)]
            for work in receives:
                work.wait()
            if left > 1:
                receives, go = post()
            dist.send(self._byte, peer, tag=LAST)
            for work in sends:
                work.wait()

    def _receives(self, peer: int, size_bytes: int, window: int) -> list[dist.Work]:
        return [dist.irecv(slot, peer, tag=PAYLOAD) for slot in slots(self._in, size_bytes, window)]


def start_gloo(comm: MPI.Comm, places: Sequence[Place]) -> None:
    """Joins all ranks of `comm` (rank r at `places[r]`) in one gloo group; where to meet goes round over MPI.

    Raises FieldError where this rank cannot be reached by the others.
    """
    torch.set_num_threads(1)
    address = own_address(places, os.environ)
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(address, 0, comm.size, is_master=True, timeout=MEETING, wait_for_workers=False)
    meeting, port = comm.bcast((address, store.port if store else 0))
    if store is None:
        store = dist.TCPStore(meeting, port, comm.size, is_master=False, timeout=MEETING)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=WAIT)


def own_address(places: Sequence[Place], environ: Mapping[str, str]) -> str:
    """Where this process is met: of the interface that gloo is told to use, else its host's name; alone, loopback.

    Raises FieldError where the name leads to loopback, as Debian's /etc/hosts has it, and other machines must come.
    """
    if "GLOO_SOCKET_IFNAME" in environ:
        name = environ["GLOO_SOCKET_IFNAME"].split(",")[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError as error:
                shown = ", ".join(interface for _, interface in socket.if_nameindex())
                remedy = f"use one with an IPv4 address of {shown}"
                raise FieldError("GLOO_SOCKET_IFNAME", name, f"has no address ({error.strerror})", remedy) from None
        return socket.inet_ntoa(answer[20:24])
    if len({(place.machine, place.network) for place in places}) == 1:
        return "127.0.0.1"
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        wrong = f"is not set, and {host} resolves to nothing ({error.strerror})"
        raise FieldError(
            "GLOO_SOCKET_IFNAME", None, wrong, "export the name of the interface between the nodes"
        ) from None
    if address.startswith("127."):
        wrong = f"is not set, and {host} resolves to {address}, which other machines cannot reach"
        raise FieldError("GLOO_SOCKET_IFNAME", None, wrong, "export the name of the interface between the nodes")
    return host


def stop_gloo() -> None:
    """Leaves the group."""
    dist.destroy_process_group()
