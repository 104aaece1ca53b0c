"""What is asked of the engine, quantity by quantity, and the groups of quantities that one measurement gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from support.results import Speed

from crosspipe.problem import Spread
from crosspipe.problem.spread import spread

Show = Callable[[str], None]


class Measured(NamedTuple):
    """What is no median of samples, or not in the unit asked for: then it is only reported."""

    spread: Spread
    unit: str | None = None


Samples = Mapping[str, Sequence[float] | Measured]  # quantity -> samples


class Asked(NamedTuple):
    """A quantity: it must be at most `must` and should be at most `aim` (at least, where `least`).

    Its median is judged; with `each` the far end of its 95 % interval must be within `must` as well.
    """

    section: str
    key: str
    unit: str
    must: float | None = None
    aim: float | None = None
    least: bool = False
    each: bool = False

    def result(self, samples: Samples, finished: str) -> Speed:
        """This quantity as it is saved."""
        found = samples[self.key]
        if not isinstance(found, Measured):
            found = Measured(spread(found))
        return Speed(key=self.key, finished=finished, spread=found.spread, unit=found.unit or self.unit)

    def verdict(self, speed: Speed) -> str:
        """In words."""
        median, far = speed.spread.median, speed.spread.low if self.least else speed.spread.high
        if speed.unit != self.unit or (self.must is None and self.aim is None):
            return "reported"
        if not all(self._reaches(x, self.must) for x in (median, far if self.each else None) if x is not None):
            return "**missed**"
        if self.aim is None:
            return "met"
        if self._reaches(median, self.aim):
            return "aim met"
        return "aim missed" if self.must is None else "must met"

    def _reaches(self, value: float, limit: float | None) -> bool:
        return limit is None or (value >= limit if self.least else value <= limit)

    @property
    def must_words(self) -> str:
        return f"{self._words(self.must)}{', each' if self.each else ''}"

    @property
    def aim_words(self) -> str:
        return self._words(self.aim)

    def _words(self, limit: float | None) -> str:
        return "–" if limit is None else f"{'≥' if self.least else '≤'} {limit:g}"


class Group(NamedTuple):
    """Quantities that are measured together. `cannot()` says why they cannot be on this machine (empty: they can)."""

    asked: tuple[Asked, ...]
    measure: Callable[[Show], Samples]
    cannot: Callable[[], str] = lambda: ""
