"""One row of the measuring bar: what is compared, by how much it may differ, and how it is had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from support.results import Speed, now

from crosspipe.problem import Spread
from crosspipe.problem.spread import spread

RATIO = "ratio"
NEAR = 0.05
WIDEST = 0.1  # of a ratio's interval: a wider one says that the machine was busy, not that both are alike
NEAR_MUST = f"within {NEAR:.0%}, interval at most {WIDEST} wide"
RATIO_MUST = f"within {NEAR:.0%} or the interval holds 1; at most {WIDEST} wide"


class Check(NamedTuple):
    """`samples` makes the measurement: ratios, or differences in `unit`. `allowed` is how far from 1 (ratios), or from
    0, the median may lie; a ratio with `or_holds_one` may lie further where its interval holds 1."""

    key: str
    unit: str
    must: str
    allowed: float
    samples: Callable[[], Sequence[float]]
    or_holds_one: bool = False

    def measured(self) -> Speed:
        return Speed(key=self.key, finished=now(), spread=spread(self.samples()), unit=self.unit)

    def verdict(self, found: Spread) -> str:
        """ "met", "missed", or "not settled" where a ratio's interval is too wide to tell."""
        if self.unit != RATIO:
            return "met" if abs(found.median) <= self.allowed else "missed"
        if found.low is None or found.high is None or found.high - found.low > WIDEST:
            return "not settled"
        holds_one = self.or_holds_one and found.low <= 1 <= found.high
        return "met" if holds_one or abs(found.median - 1) <= self.allowed else "missed"


def ratio(key: str, samples: Callable[[], Sequence[float]]) -> Check:
    """A ratio to a rival's measurement: 1, give or take 5 % or what the interval leaves open."""
    return Check(key, RATIO, RATIO_MUST, NEAR, samples, or_holds_one=True)


def near(key: str, samples: Callable[[], Sequence[float]]) -> Check:
    """A ratio that must be 1, give or take 5 %."""
    return Check(key, RATIO, NEAR_MUST, NEAR, samples)


def exact(key: str, unit: str, difference: Callable[[], float]) -> Check:
    """A difference that must be 0."""
    return Check(key, unit, "0", 0.0, lambda: [difference()])
