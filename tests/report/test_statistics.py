"""The interval of the median against published tables and the binomial distribution summed by hand."""

from __future__ import annotations

import math

import pytest

from crosspipe.report.statistics import Median, interval_ranks, median


@pytest.mark.parametrize(
    ("samples", "ranks"),
    # ranks, less one, of the published tables of the median's 95 % interval (10: 2nd to 9th, 20: 6th to 15th)
    [(5, None), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (10, (1, 8)), (20, (5, 14)), (64, (23, 40))],
)
def test_ranks_are_those_of_the_published_table(samples: int, ranks: tuple[int, int] | None) -> None:
    assert interval_ranks(samples) == ranks


@pytest.mark.parametrize("samples", range(6, 70))
def test_ranks_cover_95_percent_and_the_next_narrower_do_not(samples: int) -> None:
    def coverage(low: int, high: int) -> float:
        return sum(math.comb(samples, k) for k in range(low + 1, high + 1)) / 2**samples

    low, high = interval_ranks(samples)
    assert low + high == samples - 1
    assert coverage(low, high) >= 0.95
    assert low + 1 >= high - 1 or coverage(low + 1, high - 1) < 0.95


def test_median_of_few_samples_has_no_interval() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == Median(2.5, None, None, 4)


def test_median_of_six_samples_lies_between_the_extremes() -> None:
    assert median([6, 5, 4, 3, 2, 1]) == Median(3.5, 1, 6, 6)


def test_no_samples_have_no_median() -> None:
    assert median([]) is None
