"""Time that all ranks share: CLOCK_MONOTONIC of rank 0's host, in integer ns, and waiting for a moment of it.

Ranks on one host share that clock exactly. On other hosts the offset is estimated from the fastest of many round trips
(Cristian's method), off by at most half of that round trip, and estimated again as the run goes on, which gives the
drift.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import NamedTuple

import torch

from crosspipe.execute.priority import is_prompt
from crosspipe.execute.trace import Trace
from crosspipe.execute.transport import Header, Transport

SPIN_NS = 300_000  # the last part of every wait is spent spinning: a sleeping process wakes up to this late
PROMPT_SPIN_NS = 50_000  # one at real-time priority wakes sooner, and keeps others from their core while it spins
EVERY_NS = 5_000_000_000  # between two estimates of another host's clock, and the least that gives a drift
_ROUND_TRIPS = 50


class Clock(NamedTuple):
    """CLOCK_MONOTONIC of this host plus `offset_ns`, plus `drift_ppm` of the time since it read `since_ns`.

    `error_ns` bounds how wrong the offset can be.
    """

    offset_ns: int = 0
    error_ns: int = 0
    drift_ppm: float = 0.0
    since_ns: int = 0

    def now(self) -> int:
        """The common time in ns."""
        here = time.monotonic_ns()
        if not self.drift_ppm:
            return here + self.offset_ns
        return here + self.offset_ns + round((here - self.since_ns) * self.drift_ppm * 1e-6)

    def wait_until(self, moment_ns: int) -> int:
        """Sleeps, then spins, until `moment_ns`; returns the time then. Returns at once if it has passed."""
        spin_ns = PROMPT_SPIN_NS if is_prompt() else SPIN_NS
        while (left := moment_ns - self.now()) > spin_ns:
            time.sleep((left - spin_ns) / 1e9)
        while (now := self.now()) < moment_ns:
            pass
        return now


def fitted(first: Clock, last: Clock) -> Clock:
    """The clock from two estimates of it: the last one's offset, and the drift where they are far enough apart."""
    apart = last.since_ns - first.since_ns
    if apart < EVERY_NS:
        return last
    return last._replace(drift_ppm=1e6 * (last.offset_ns - first.offset_ns) / apart)


class CommonClock:
    """This rank's `clock`, estimated when this is made and again every few seconds between iterations. Collective."""

    def __init__(self, transport: Transport) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        boots = transport.allgather(boot)
        self._transport = transport
        self._elsewhere = [rank for rank in range(transport.size) if boots[rank] != boots[0]]
        self._estimated_ns: int | None = None
        self.clock = self._first = self._estimate()

    def keep(self, trace: Trace) -> None:
        """After an iteration: estimates anew if the last time is long ago, by the start on which all ranks agreed."""
        if not self._elsewhere:
            return
        if self._estimated_ns is None:
            self._estimated_ns = trace.begin_ns
        elif trace.begin_ns - self._estimated_ns >= EVERY_NS:
            self._estimated_ns = trace.begin_ns
            self.clock = fitted(self._first, self._estimate())

    def _estimate(self) -> Clock:
        """Every rank on another host measures against rank 0, one after the other."""
        clock, mine = Clock(), self._transport.rank
        for rank in self._elsewhere:
            if mine == 0:
                _answer(self._transport, rank)
            elif mine == rank:
                clock = _measure(self._transport)
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
            middle = (asked + answered) // 2
            best = trip, there - middle, middle
    assert best is not None
    return Clock(offset_ns=best[1], error_ns=best[0] // 2, since_ns=best[2])


def _answer(transport: Transport, rank: int) -> None:
    buffer = torch.empty(1)
    for _ in range(_ROUND_TRIPS):
        number = transport.post_receive(rank, buffer).wait().number
        transport.send(rank, Header(number, time.monotonic_ns(), 0, 0, 0), torch.zeros(1))


class Starts:
    """Moments shortly ahead at which all ranks begin. Every call of every rank is collective."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._told_ns: int | None = None  # what the last meeting took this rank after all had come

    def agree(self, clock: Clock, *, lead_ns: int = 5_000_000) -> int:
        """The latest rank's now, plus `lead_ns`, plus twice what the last meeting took the slowest link.

        A meeting over a link of 20 ms lasts longer than any fixed lead: without its time the moment would have passed
        when the ranks hear of it.
        """
        if self._told_ns is None:
            self._meet(clock)  # only to know what one takes
        last, took_ns = self._meet(clock)
        return last + lead_ns + 2 * took_ns

    def _meet(self, clock: Clock) -> tuple[int, int]:
        """(when the last rank came, the longest time that any rank's meeting before this one took)."""
        rows = self._transport.allgather(struct.pack("<qq", clock.now(), self._told_ns or 0))
        nows, tooks = zip(*(struct.unpack("<qq", row) for row in rows), strict=True)
        self._told_ns = max(0, clock.now() - max(nows))
        return max(nows), max(tooks)
