"""What a method is asked for, and what it tells while it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from crosspipe.schedule import Schedule
from crosspipe.solver.bounds import Bound


class Progress(NamedTuple):
    """How far a search is: best makespan and proven bound in ns, gap as in Certificate, elapsed seconds."""

    makespan_ns: int
    lower_bound_ns: int
    gap: float
    elapsed_s: float


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a method may use. `started_s` is `time.monotonic()`, `bound` our own lower bound for the problem.

    `hints` are schedules to start from; `progress` hears of improvements.
    """

    bound: Bound
    started_s: float
    time_limit_s: float
    workers: int
    seed: int
    pieces: int
    hints: tuple[Schedule, ...] = ()
    progress: Callable[[Progress], None] | None = None

    def tell(self, makespan_ns: int, bound_ns: int) -> None:
        """Tells the listener, if there is one."""
        if self.progress is not None:
            gap = makespan_ns / bound_ns - 1 if bound_ns else 0.0
            self.progress(Progress(makespan_ns, bound_ns, gap, time.monotonic() - self.started_s))
