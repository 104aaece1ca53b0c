"""The median and its distribution-free interval: what the report says about repeated measurements.

No distribution is assumed: the interval is between two order statistics, chosen by the binomial distribution (Le
Boudec, Performance Evaluation of Computer and Communication Systems, 2010, 2.2; Hoefler and Belli, SC'15, rule 6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Median(NamedTuple):
    """A median with its 95 % interval (None where the samples are too few for one) and the number of samples."""

    value: float
    low: float | None
    high: float | None
    samples: int


def interval_ranks(samples: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """0-based ranks (low, high) of the sorted samples that enclose the median with at least `confidence`.

    The narrowest symmetric pair; None where even the smallest and largest sample are not enough (below 6 at 95 %).
    """
    outside, below = (1 - confidence) / 2, 0.0
    for rank in range(samples // 2 + 1):
        below += math.comb(samples, rank) * 0.5**samples
        if below > outside:
            return (rank - 1, samples - rank) if rank > 0 else None
    return None


def median(values: Iterable[float]) -> Median | None:
    """The median of `values` with its 95 % interval; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    value = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    ranks = interval_ranks(len(ordered))
    low, high = (ordered[ranks[0]], ordered[ranks[1]]) if ranks else (None, None)
    return Median(value, low, high, len(ordered))
