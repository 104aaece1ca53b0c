"""Results as JSON lines, each written as soon as it is known, so that an interrupted run goes on where it stopped.

A line is a Setup or a result; results belong to the Setup line above them. Nothing is ever rewritten.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from support.setup import Setup

from crosspipe.problem.spread import Spread
from crosspipe.schedule.crossings import Crossings


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell"):
    """One schedule searched on one problem. Times in ns, `wall_s` and `first_s` in seconds since the call.

    `wall_s` is the time to the proof, or to the limit; `first_s` to the first schedule. `statics` are the makespans of
    the static schedules that fit. `faults` is empty if the schedule passes `check` and both models re-time it to the
    makespan its certificate states.
    """

    key: str
    problem_digest: str
    schedule: str
    time_limit_s: float
    finished: str
    wall_s: float
    first_s: float
    makespan_ns: int = 0
    lower_bound_ns: int = 0
    proven_by: str = ""
    found_by: str = ""
    explanation: str = ""
    statics: dict[str, int] = {}
    faults: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """As in a Certificate; infinite where nothing was found or proven."""
        return self.makespan_ns / self.lower_bound_ns - 1 if self.lower_bound_ns and self.makespan_ns else float("inf")

    @property
    def proved(self) -> bool:
        return self.makespan_ns == self.lower_bound_ns > 0

    @property
    def best_static(self) -> tuple[str, int] | None:
        """Name and makespan of the best static schedule that fits."""
        return min(self.statics.items(), key=lambda item: item[1], default=None)

    @property
    def worse_than_static(self) -> bool:
        return self.best_static is not None and self.makespan_ns > self.best_static[1]


class Speed(msgspec.Struct, frozen=True, kw_only=True, tag="speed"):
    """A repeated measurement in `unit`: its median with the distribution-free 95 % interval."""

    key: str
    finished: str
    spread: Spread
    unit: str


class Greedy(msgspec.Struct, frozen=True, kw_only=True, tag="greedy"):
    """`cross_ud_sub` with one n_sub on one problem: makespans in ns, seconds of planning with every block cut.

    `whole_ns` is executable with W whole, `cut_ns` with W in n_sub pieces, `ideal_ns` the plan with F, D and W cut.
    """

    key: str
    problem_digest: str
    finished: str
    n_sub: int
    whole_ns: int
    cut_ns: int
    ideal_ns: int
    lower_bound_ns: int
    statics: dict[str, int]
    plan: Spread


class Crossed(msgspec.Struct, frozen=True, kw_only=True, tag="crossed"):
    """One family at one number of microbatches and one pair of delays; `gap` is the certificate's;
    `time_limit_s` is None where nothing is searched."""

    key: str
    problem_digest: str
    time_limit_s: float | None
    finished: str
    row: Crossings
    gap: float | None = None


Result = Cell | Speed | Greedy | Crossed


class Wanted(NamedTuple):
    """What a result must be of: its problem's digest and its search's time limit, None where it has none."""

    problem_digest: str | None = None
    time_limit_s: float | None = None


class Results:
    """The results file: what stands in it, and adding to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: Setup | None = None
        self._all: list[tuple[Setup, Result]] = []
        if path.exists():
            whole, end, cut_off = path.read_bytes().rpartition(b"\n")
            if cut_off:  # the run was killed while it wrote
                os.truncate(path, len(whole + end))
            decoder = msgspec.json.Decoder(Setup | Result)
            for line in whole.splitlines():
                self._take(decoder.decode(line))

    def _take(self, line: Setup | Result) -> None:
        if isinstance(line, Setup):
            self._last = line
        elif self._last is None:
            raise ValueError(f"{self.path}: a result stands above the first set-up; the file is damaged")
        else:
            self._all.append((self._last, line))

    def add(self, setup: Setup, result: Result) -> None:
        """Appends one result, on disk before this returns."""
        lines: list[Setup | Result] = [result] if setup == self._last else [setup, result]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        for line in lines:
            self._take(line)

    def newest(self, wanted: Mapping[str, Wanted]) -> dict[str, tuple[Setup, Result]]:
        """The last result of each key, if it is of the wanted problem, whatever its set-up and time limit."""
        return {
            result.key: (setup, result)
            for setup, result in self._all
            if result.key in wanted and getattr(result, "problem_digest", None) == wanted[result.key].problem_digest
        }

    def done(self, wanted: Mapping[str, Wanted], setup: Setup) -> set[str]:
        """Keys whose newest result is of this very set-up and time limit: nothing to measure again."""
        return {
            key
            for key, (made_with, result) in self.newest(wanted).items()
            if made_with == setup and getattr(result, "time_limit_s", None) == wanted[key].time_limit_s
        }


def now() -> str:
    """The date and time of day in UTC."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}"
