"""Emulated links: when may a message count as arrived, by the alpha-beta model with exact queueing.

The sender keeps the wire's state and writes into the header when the message may be used; it is never delayed itself.
The receiver waits for the real bytes and then for that moment, later where it posted its receive after the service
began: a real link moves no byte before. Where the real transfer takes longer than the emulated
one the message is late: the engine counts those. The method follows CrossPipe (ATC'25), without patching
PyTorch.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from crosspipe.execute.variation import Bandwidth, Jitter
from crosspipe.problem import Hop, Problem
from crosspipe.schedule.order import Message

_CONSTANT = Bandwidth()


class Departure(NamedTuple):
    """Service by the wire and arrival, in ns."""

    start_ns: int
    served_ns: int
    arrival_ns: int


class Wire(Protocol):
    """The state of one directed wire."""

    def depart(self, ready_ns: int, hop: Hop) -> Departure:
        """Puts a message that is ready at `ready_ns` behind all earlier ones."""


class OwnWire:
    """A wire with one sender: its state is a number. `bandwidth` varies it over time."""

    def __init__(self, bandwidth: Bandwidth = _CONSTANT) -> None:
        self._free_ns, self._bandwidth = 0, bandwidth

    def depart(self, ready_ns: int, hop: Hop) -> Departure:
        """See `Wire`."""
        departure, self._free_ns = _serve(ready_ns, self._free_ns, hop, self._bandwidth)
        return departure


class SharedWire:
    """A wire with several senders on one host: its state is a number in a file, one sender at a time.

    First come, first served by the moment of the call, which follows the block's end by microseconds.
    """

    def __init__(self, path: Path, bandwidth: Bandwidth = _CONSTANT) -> None:
        self._bandwidth = bandwidth
        with path.open("ab") as file:  # whoever comes first makes it; the others find it
            file.truncate(8)
        self._file = path.open("r+b")
        self._free = mmap.mmap(self._file.fileno(), 8)

    def depart(self, ready_ns: int, hop: Hop) -> Departure:
        """See `Wire`."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (free_ns,) = struct.unpack("<q", self._free[:8])
            departure, free_ns = _serve(ready_ns, free_ns, hop, self._bandwidth)
            self._free[:8] = struct.pack("<q", free_ns)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return departure


def _serve(ready_ns: int, free_ns: int, hop: Hop, bandwidth: Bandwidth) -> tuple[Departure, int]:
    start = max(ready_ns, free_ns)
    served = bandwidth.finish_ns(start, hop.serialisation_ns) if bandwidth.factors else start + hop.serialisation_ns
    return Departure(start, served, served + hop.latency_ns), served


def depart_unshared(ready_ns: int, hop: Hop) -> Departure:
    """A message on a hop without a wire: nothing queues."""
    return _serve(ready_ns, ready_ns, hop, _CONSTANT)[0]


def open_wires(
    wire_senders: dict[str, tuple[int, ...]],
    rank: int,
    directory: Path,
    *,
    bandwidth: Mapping[str | None, Bandwidth] = MappingProxyType({}),
) -> dict[str, Wire]:
    """The wires `rank` sends over; those with several senders share a file in `directory`.

    `bandwidth` holds what varies by wire; None stands for every wire that is not named.
    """
    names = sorted(wire_senders)
    wires: dict[str, Wire] = {}
    for number, wire in enumerate(names):
        varying = bandwidth.get(wire, bandwidth.get(None, _CONSTANT))
        if rank in wire_senders[wire]:
            alone = len(wire_senders[wire]) == 1
            wires[wire] = OwnWire(varying) if alone else SharedWire(directory / f"wire-{number}", varying)
    return wires


class Links:
    """All hops of a Problem as one rank sends over them; `wires` None: nothing is emulated."""

    def __init__(self, problem: Problem, wires: Mapping[str, Wire] | None, jitter: Jitter | None = None) -> None:
        self._wires, self._jitter = wires, jitter
        kinds, positions = ("F", "D", "gather", "reduce"), range(problem.positions)
        self._hops = {(kind, at): problem.message_hop(kind, at) for kind in kinds for at in positions}

    def depart(self, iteration: int, message: Message, ready_ns: int) -> Departure:
        """The life of a message that is ready at `ready_ns`; all of it that moment where nothing is emulated."""
        if self._wires is None:
            return Departure(ready_ns, ready_ns, ready_ns)
        hop = self._hops[message.kind, message.position]
        assert hop is not None
        if self._jitter is not None:
            hop = self._jitter.vary(hop, iteration, message)
        return depart_unshared(ready_ns, hop) if hop.wire is None else self._wires[hop.wire].depart(ready_ns, hop)
