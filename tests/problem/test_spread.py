"""The median's interval against the published table of order statistics and against simulation."""

import math

import numpy as np
import pytest

from crosspipe.problem.spread import interval_ranks, spread


@pytest.mark.parametrize(
    # Le Boudec 2010, table A.1 (95 % interval of the median), given there as 1-based ranks (j, k)
    ("samples", "ranks"),
    [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (70, (27, 44))],
)
def test_ranks_are_those_of_the_published_table(samples: int, ranks: tuple[int, int]) -> None:
    low, high = interval_ranks(samples) or (-1, -1)
    assert (low + 1, high + 1) == ranks


def test_ranks_of_many_samples_follow_the_normal_limit() -> None:
    low, high = interval_ranks(2000) or (-1, -1)
    assert low == pytest.approx(1000 - 0.98 * math.sqrt(2000), abs=2)
    assert high == 1999 - low


def test_too_few_samples_know_nothing_of_their_spread() -> None:
    assert interval_ranks(5) is None
    few = spread([3, 1, 2])
    assert (few.median, few.low, few.high, few.samples) == (2, None, None, 3)
    with pytest.raises(ValueError, match="no samples"):
        spread([])


def test_the_interval_covers_the_median_of_a_skewed_distribution() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        drawn = spread(rng.exponential(size=25))
        inside += drawn.low <= math.log(2) <= drawn.high
    assert 0.94 <= inside / 1000 <= 0.98  # exactly 0.957 by the binomial distribution


@pytest.mark.parametrize("samples", range(6, 70))
def test_ranks_cover_95_percent_and_the_next_narrower_do_not(samples: int) -> None:
    def coverage(low: int, high: int) -> float:
        return sum(math.comb(samples, k) for k in range(low + 1, high + 1)) / 2**samples

    low, high = interval_ranks(samples) or (-1, -1)
    assert low + high == samples - 1
    assert coverage(low, high) >= 0.95
    assert low + 1 >= high - 1 or coverage(low + 1, high - 1) < 0.95


def test_width_over_the_median_by_hand() -> None:
    assert spread([6, 5, 4, 3, 2, 1]).relative_width == pytest.approx(5 / 3.5)
    assert spread([1, 2, 3]).relative_width == math.inf
