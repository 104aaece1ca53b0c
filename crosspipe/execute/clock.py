"""Time that all ranks share: CLOCK_MONOTONIC of rank 0's host, in integer ns, and waiting for a moment of it.

Ranks on one host share that clock exactly. On other hosts the offset is estimated from the fastest of many round trips
(Cristian's method); it is off by at most half of that round trip, and its drift is not corrected.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import NamedTuple

import torch

from crosspipe.execute.transport import Header, Transport

SPIN_NS = 300_000  # the last part of every wait is spent spinning: a sleeping process wakes up to this late
_ROUND_TRIPS = 50


class Clock(NamedTuple):
    """`offset_ns` is added to this host's CLOCK_MONOTONIC; `error_ns` bounds how wrong that can be."""

    offset_ns: int = 0
    error_ns: int = 0

    def now(self) -> int:
        """The common time in ns."""
        return time.monotonic_ns() + self.offset_ns

    def wait_until(self, moment_ns: int) -> int:
        """Sleeps, then spins, until `moment_ns`; returns the time then. Returns at once if it has passed."""
        while (left := moment_ns - self.now()) > SPIN_NS:
            time.sleep((left - SPIN_NS) / 1e9)
        while (now := self.now()) < moment_ns:
            pass
        return now


def common_clock(transport: Transport) -> Clock:
    """This rank's Clock. Collective: every rank measures against rank 0, one after the other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    boots = transport.allgather(boot)
    clock = Clock()
    for rank in range(1, transport.size):
        if boots[rank] != boots[0] and transport.rank in (0, rank):
            clock = _answer(transport, rank) if transport.rank == 0 else _measure(transport)
    return clock


def _measure(transport: Transport) -> Clock:
    """The clock of a rank on another host, by `_ROUND_TRIPS` questions to rank 0."""
    buffer, best = torch.empty(1), None
    for number in range(_ROUND_TRIPS):
        receipt = transport.post_receive(0, buffer)
        asked = time.monotonic_ns()
        transport.send(0, Header(number, 0, 0, 0, 0), torch.zeros(1))
        there = receipt.wait().ready_ns
        answered = time.monotonic_ns()
        trip = answered - asked
        if best is None or trip < best[0]:
            best = trip, there - (asked + answered) // 2
    assert best is not None
    return Clock(offset_ns=best[1], error_ns=best[0] // 2)


def _answer(transport: Transport, rank: int) -> Clock:
    buffer = torch.empty(1)
    for _ in range(_ROUND_TRIPS):
        number = transport.post_receive(rank, buffer).wait().number
        transport.send(rank, Header(number, time.monotonic_ns(), 0, 0, 0), torch.zeros(1))
    return Clock()


def agree_start(transport: Transport, clock: Clock, *, lead_ns: int = 5_000_000) -> int:
    """A moment shortly ahead at which all ranks begin: the latest rank's now plus `lead_ns`. Collective."""
    nows = transport.allgather(struct.pack("<q", clock.now()))
    return max(struct.unpack("<q", now)[0] for now in nows) + lead_ns
