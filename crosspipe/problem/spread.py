"""The median of repeated measurements and its distribution-free 95 % interval: what is known of a measured quantity.

No distribution is assumed: the interval lies between two order statistics chosen by the binomial distribution (Le
Boudec, Performance Evaluation of Computer and Communication Systems, 2010, section 2.2; Hoefler and Belli, SC'15).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Literal

import msgspec

FEWEST = 6  # below six samples not even smallest and largest enclose the median with 95 %


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured quantity: median, the interval that holds it with 95 % (None: too few samples), number of samples.

    With `interval` "range", low and high are the least and most of several medians, and `samples` are those.
    """

    median: float
    low: float | None
    high: float | None
    samples: int
    interval: Literal["95 %", "range"] = "95 %"

    @property
    def relative_width(self) -> float:
        """Width of the interval over the median; infinite where there is no interval or the median is 0."""
        if self.low is None or self.high is None or self.median == 0:
            return math.inf
        return (self.high - self.low) / abs(self.median)


@cache
def interval_ranks(samples: int) -> tuple[int, int] | None:
    """0-based ranks (low, high) of the sorted samples that enclose the median with at least 95 %; None below 6.

    Exact: the number of ways in which fewer than `low + 1` samples fall below the median, of 2**samples, in integers.
    """
    allowed = 2**samples * 25 // 1000
    ways, below = 1, 0
    for rank in range(samples // 2 + 1):
        below += ways
        if below > allowed:
            return (rank - 1, samples - rank) if rank > 0 else None
        ways = ways * (samples - rank) // (rank + 1)
    return None


def spread(values: Iterable[float]) -> Spread:
    """Median of `values` with its 95 % interval. Raises ValueError without values."""
    ordered = sorted(float(value) for value in values)
    if not ordered:
        raise ValueError("the spread of no samples is not defined")
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    ranks = interval_ranks(len(ordered))
    low, high = (ordered[ranks[0]], ordered[ranks[1]]) if ranks else (None, None)
    return Spread(median=median, low=low, high=high, samples=len(ordered))
