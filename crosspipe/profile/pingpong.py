"""One ping-pong between two ranks: how often to repeat, and the exchange itself, whatever carries the bytes.

A channel (MPI, gloo) sends and times; the initiator decides by `next_batch` when the median is known well enough
(Hoefler and Belli, SC'15, rules 5 and 6: state the interval, stop by it). The responder is told the size of each batch.
"""

from __future__ import annotations

import time
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosspipe.problem.spread import spread


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When the round trips of one size are enough: 95 % interval of the median within `width` of it, or time is up.

    `fewest` round trips are made whatever the time, `most` at the most; every batch starts with `warmup` more that do
    not count.
    """

    width: float = 0.05
    fewest: int = 10
    most: int = 2000
    warmup: int = 2


class Channel(Protocol):
    """What carries the bytes. Receives are posted before the message that they meet is sent."""

    name: str

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        """Sends `size_bytes` to `peer` and gets them back, `count` times; each round trip in ns."""

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        """Sends back what `ping` sends."""


class Control(Protocol):
    """Tells the responder how many round trips follow; 0 ends the size."""

    def tell(self, peer: int, count: int) -> None: ...

    def hear(self, peer: int) -> int: ...


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The round trips of one ordered pair at one size, in ns, in the order made; `warmup[i]`: not to be counted."""

    transport: str
    source: int
    target: int
    size_bytes: int
    round_trip_ns: NDArray[np.int64]
    warmup: NDArray[np.bool_]

    @property
    def one_way_ns(self) -> NDArray[np.float64]:
        """Half of every counted round trip, in ns."""
        return self.round_trip_ns[~self.warmup] / 2


def next_batch(counted_ns: NDArray[np.int64], spent_s: float, budget_s: float, rule: Rule) -> int:
    """How many more round trips to make after `counted_ns`; 0 to stop. Batches double, and fit the time that is left.

    Looking at the interval after every batch makes it a little too narrow: with doubling batches, there are few looks.
    """
    count = len(counted_ns)
    if count < rule.fewest:
        return rule.fewest - count
    known = spread(counted_ns)
    if known.relative_width <= rule.width:
        return 0
    affordable = int((budget_s - spent_s) * 1e9 / known.median) - rule.warmup
    return max(0, min(count, affordable, rule.most - count))


def initiate(
    channel: Channel, control: Control, source: int, target: int, size_bytes: int, budget_s: float, rule: Rule
) -> Cell:
    """Measures one size from this rank (`source`) to `target`, which runs `respond` meanwhile."""
    trips: list[int] = []
    warmup: list[bool] = []
    counted = np.empty(0, dtype=np.int64)
    start = time.monotonic()
    while count := next_batch(counted, time.monotonic() - start, budget_s, rule):
        control.tell(target, rule.warmup + count)
        trips += channel.ping(target, size_bytes, rule.warmup + count)
        warmup += [True] * rule.warmup + [False] * count
        counted = np.array(trips, dtype=np.int64)[~np.array(warmup)]
    control.tell(target, 0)
    return Cell(
        transport=channel.name,
        source=source,
        target=target,
        size_bytes=size_bytes,
        round_trip_ns=np.array(trips, dtype=np.int64),
        warmup=np.array(warmup, dtype=bool),
    )


def respond(channel: Channel, control: Control, peer: int, size_bytes: int) -> None:
    """Answers `initiate` on `peer` until it says that this size is done."""
    while count := control.hear(peer):
        channel.pong(peer, size_bytes, count)
