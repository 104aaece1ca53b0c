"""The median of repeated measurements and its distribution-free 95 % interval.

No distribution is assumed: the interval lies between two order statistics chosen by the binomial distribution (Le
Boudec, Performance Evaluation of Computer and Communication Systems, 2010, section 2.2; Hoefler and Belli, SC'15).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from crosspipe.problem import Spread

FEWEST = 6  # below six samples not even smallest and largest enclose the median with 95 %


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


def spread(values: Sequence[float] | NDArray[np.generic]) -> Spread:
    """Median with its 95 % interval; with fewer than 6 samples the interval is (-inf, inf), since nothing is known.

    Raises ValueError without samples.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    if not len(ordered):
        raise ValueError("the spread of no samples is not defined")
    ranks = interval_ranks(len(ordered))
    low, high = (float(ordered[ranks[0]]), float(ordered[ranks[1]])) if ranks else (-math.inf, math.inf)
    return Spread(median=float(np.median(ordered)), low=low, high=high, samples=len(ordered))
