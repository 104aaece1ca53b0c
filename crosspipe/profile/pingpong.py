"""One exchange between two ranks, repeated until its median is known: ping-pong, or a window of messages in flight.

A channel (MPI, gloo) sends and times; the initiator decides by `next_batch` when the median is known well enough
(Hoefler and Belli, SC'15, rules 5 and 6: state the interval, stop by it). The responder is told the size of each batch.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosspipe.problem.spread import FEWEST, spread


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When the round trips of one size are enough: 95 % interval of the median within `width` of it, or time is up.

    `fewest` round trips are made whatever the budget (fewer, down to six, where the limit is near), `most` at the most;
    every batch starts with `warmup` more that do not count.
    """

    width: float = 0.05
    fewest: int = 10
    most: int = 2000
    warmup: int = 1


class Allowance(NamedTuple):
    """Seconds for one size: `budget_s` to become sure of its median, `limit_s` that may not be exceeded."""

    budget_s: float
    limit_s: float = math.inf


PING_PONG, ONE_WAY, BOTH_WAYS, TOGETHER = PATTERNS = ("ping_pong", "one_way", "both_ways", "together")


class Pattern(NamedTuple):
    """What is exchanged, `name` one of `PATTERNS`.

    `ping_pong`: a message there and back. `one_way`: `window` messages there, a byte back when the last is in.
    `both_ways`: a byte there, then `window` messages there while as many come back, and a byte back. `together`: as
    `one_way`, while other pairs of the same two sites do the same.
    """

    name: str
    window: int


SINGLE = Pattern(PING_PONG, 1)


class Channel(Protocol):
    """What carries the bytes. Receives are posted before the message that they meet is sent, into `slots`."""

    name: str

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        """Sends `size_bytes` to `peer` and gets them back, `count` times; each round trip in ns."""

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        """Sends back what `ping` sends."""

    def stream(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> list[int]:
        """`count` windows as `one_way` (or `both_ways`) has them; from the first send to the byte back, each in ns."""

    def drain(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> None:
        """Answers `stream`."""


def slots(buffer: Any, size_bytes: int, window: int) -> list[Any]:
    """The parts of `buffer` (bytes) for a window of messages, one behind the other; where it is too small for all, the
    same again and again, as OSU's osu_bw has it."""
    fits = len(buffer) // size_bytes
    return [buffer[i % fits * size_bytes :][:size_bytes] for i in range(window)]


class Control(Protocol):
    """Tells the responder how many round trips follow; 0 ends the size."""

    def tell(self, peer: int, count: int) -> None: ...

    def hear(self, peer: int) -> int: ...


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The round trips of one ordered pair at one size, in ns, in the order made; `warmup[i]`: not to be counted.

    A round trip is one repetition of `pattern`, from the initiator's first send to the last byte that comes back.
    `skipped`: six of them would have taken too long; what was made to see that counts as warm-up.
    """

    pattern: Pattern = SINGLE
    transport: str
    source: int
    target: int
    size_bytes: int
    round_trip_ns: NDArray[np.int64]
    warmup: NDArray[np.bool_]
    skipped: bool = False

    @property
    def one_way_ns(self) -> NDArray[np.float64]:
        """Half of every counted round trip, in ns."""
        return self.round_trip_ns[~self.warmup] / 2


class Skipped(NamedTuple):
    """A size of an ordered pair that there was no time for."""

    pattern: str
    transport: str
    source: int
    target: int
    size_bytes: int


def next_batch(counted_ns: NDArray[np.int64], spent_s: float, allowed: Allowance, rule: Rule) -> int:
    """How many more round trips to make after `counted_ns`; 0 to stop. Batches double, and fit the time that is left.

    One comes first, to see how long it takes. Looking at the interval after every batch makes it a little too narrow:
    with doubling batches, there are few looks.
    """
    count = len(counted_ns)
    if count == 0:
        return 1
    median_s = float(np.median(counted_ns)) / 1e9

    def affordable(until_s: float) -> float:
        return (until_s - spent_s) // median_s - rule.warmup if median_s > 0 else math.inf

    if count < rule.fewest:
        return int(max(min(rule.fewest - count, affordable(allowed.limit_s)), FEWEST - count, 0))
    if spread(counted_ns).relative_width <= rule.width:
        return 0
    return int(max(0, min(count, affordable(min(allowed)), rule.most - count)))


def initiate(
    channel: Channel,
    control: Control,
    source: int,
    target: int,
    size_bytes: int,
    allowed: Allowance,
    rule: Rule,
    pattern: Pattern = SINGLE,
    expected_ns: float = 0.0,
) -> Cell:
    """Measures one size from this rank (`source`) to `target`, which runs `respond` meanwhile.

    A size is skipped where the fewest repetitions with an interval do not fit the limit: without any where they take
    `expected_ns` each (or longer), else after the first.
    """
    name, window = pattern
    trips: list[int] = []
    warmup: list[bool] = []
    counted = np.empty(0, dtype=np.int64)
    start = time.monotonic()
    skipped = (2 * rule.warmup + FEWEST) * expected_ns / 1e9 > allowed.limit_s
    while not skipped and (count := next_batch(counted, time.monotonic() - start, allowed, rule)):
        control.tell(target, rule.warmup + count)
        if name == PING_PONG:
            trips += channel.ping(target, size_bytes, rule.warmup + count)
        else:
            trips += channel.stream(target, size_bytes, window, rule.warmup + count, both=name == BOTH_WAYS)
        warmup += [True] * rule.warmup + [False] * count
        counted = np.array(trips, dtype=np.int64)[~np.array(warmup)]
        if len(counted) == 1:
            left_s = allowed.limit_s - (time.monotonic() - start)
            skipped = (rule.warmup + FEWEST - 1) * counted[0] / 1e9 > left_s
    control.tell(target, 0)
    return Cell(
        pattern=pattern,
        transport=channel.name,
        source=source,
        target=target,
        size_bytes=size_bytes,
        round_trip_ns=np.array(trips, dtype=np.int64),
        warmup=np.array(warmup, dtype=bool) | skipped,
        skipped=bool(skipped),
    )


def respond(channel: Channel, control: Control, peer: int, size_bytes: int, pattern: Pattern = SINGLE) -> None:
    """Answers `initiate` on `peer` until it says that this size is done."""
    name, window = pattern
    while count := control.hear(peer):
        if name == PING_PONG:
            channel.pong(peer, size_bytes, count)
        else:
            channel.drain(peer, size_bytes, window, count, both=name == BOTH_WAYS)
