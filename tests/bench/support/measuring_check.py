"""One row of the measuring bar: what is compared, by how much it may differ, and how it is had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from support.results import Speed, now

from crosspipe.problem import Spread
from crosspipe.problem.spread import spread

RATIO = "ratio"
RATIO_MUST = "within 5 %, or the interval holds 1"


class Check(NamedTuple):
    """`samples` makes the measurement: ratios, or differences in `unit`. `allowed` is how far from 1 (ratios: besides
    an interval that holds 1), or from 0, the median may lie."""

    key: str
    unit: str
    must: str
    allowed: float
    samples: Callable[[], Sequence[float]]

    def measured(self) -> Speed:
        return Speed(key=self.key, finished=now(), spread=spread(self.samples()), unit=self.unit)

    def met_by(self, found: Spread) -> bool:
        if self.unit != RATIO:
            return abs(found.median) <= self.allowed
        holds_one = found.low is not None and found.high is not None and found.low <= 1 <= found.high
        return holds_one or abs(found.median - 1) <= self.allowed


def ratio(key: str, samples: Callable[[], Sequence[float]]) -> Check:
    """A ratio that must be 1, give or take 5 %."""
    return Check(key, RATIO, RATIO_MUST, 0.05, samples)


def exact(key: str, unit: str, difference: Callable[[], float]) -> Check:
    """A difference that must be 0."""
    return Check(key, unit, "0", 0.0, lambda: [difference()])
