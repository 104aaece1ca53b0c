"""The fit against synthetic links whose alpha and beta are known, and against a brute-force minimiser."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosspipe.problem import Link
from crosspipe.profile.fit import fit_line, fit_link, pieces, residuals

SIZES = [4**power for power in range(12)]


def samples(alpha_ns: float, beta: float, rng: np.random.Generator, count: int = 40) -> dict[int, np.ndarray]:
    return {size: (alpha_ns + beta * size) * rng.lognormal(0, 0.05, count) for size in SIZES}


@pytest.mark.parametrize(("alpha_ns", "beta"), [(2_000, 0.1), (70_000, 0.3), (20_000_000, 80.0), (5_000, 0.0)])
def test_a_noiseless_line_comes_back_exactly(alpha_ns: float, beta: float) -> None:
    line = fit_line(SIZES, [alpha_ns + beta * size for size in SIZES])
    assert line.alpha_ns == pytest.approx(alpha_ns)
    assert line.beta_ns_per_byte == pytest.approx(beta)
    assert (line.smallest_bytes, line.largest_bytes) == (1, 4**11)


def test_a_third_of_the_sizes_slowed_does_not_move_the_line() -> None:
    medians = [10_000 + 0.2 * size for size in SIZES]
    for slowed, factor in ((1, 9.0), (4, 30.0), (7, 2.0), (10, 5.0)):
        medians[slowed] *= factor
    line = fit_line(SIZES, medians)
    assert line.alpha_ns == pytest.approx(10_000)
    assert line.beta_ns_per_byte == pytest.approx(0.2)


def test_outliers_in_every_size_leave_alpha_and_beta_within_three_percent() -> None:
    rng = np.random.default_rng(3)
    drawn = samples(15_000, 0.4, rng, 100)
    for times in drawn.values():
        times[rng.choice(100, 15, replace=False)] *= rng.uniform(5, 500, 15)
    link = fit_link(0, 1, "mpi", drawn)
    assert link.latency_ns == pytest.approx(15_000, rel=0.03)
    assert link.bandwidth_bytes_per_s == pytest.approx(2.5e9, rel=0.03)


def test_the_intervals_cover_the_truth() -> None:
    covered_alpha = covered_beta = 0
    for seed in range(100):
        link = fit_link(0, 1, "gloo", samples(50_000, 0.35, np.random.default_rng(seed)), seed=seed)
        assert link.latency is not None
        assert link.inverse_bandwidth is not None
        covered_alpha += link.latency.low <= 50_000 <= link.latency.high
        covered_beta += link.inverse_bandwidth.low <= 0.35 <= link.inverse_bandwidth.high
        assert link.latency.high - link.latency.low < 0.1 * 50_000  # an interval that covers by being useless is none
    assert covered_alpha >= 90
    assert covered_beta >= 90


def test_alpha_and_beta_are_never_negative() -> None:
    falling = fit_line([1, 1000, 2000], [30_000, 20_000, 10_000])
    assert falling.beta_ns_per_byte == 0
    steep = fit_line([1_000, 2_000, 4_000], [100, 300, 900])  # a free line would cross zero before 1 KB
    assert steep.alpha_ns == 0


def test_no_byte_cost_is_a_bandwidth_of_none() -> None:
    link = fit_link(0, 1, "mpi", {size: np.full(10, 7_000.0) for size in SIZES})
    assert (link.latency_ns, link.bandwidth_bytes_per_s, link.residual) == (7_000, None, 0.0)
    assert link.delay_ns(10**9) == 7_000


def test_one_size_gives_a_latency_only() -> None:
    link = fit_link(0, 1, "mpi", {8: np.array([90.0, 100.0, 120.0])})
    assert (link.latency_ns, link.bandwidth_bytes_per_s) == (100, None)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(100, 10**6), min_size=3, max_size=6))
def test_no_other_line_has_a_smaller_relative_error(medians: list[int]) -> None:
    sizes = [4 ** (power + 3) for power in range(len(medians))]
    line = fit_line(sizes, medians)
    best = sum(map(abs, residuals(line, sizes, medians)))
    for alpha in np.linspace(0, max(medians), 40):
        for beta in np.linspace(0, max(m / s for m, s in zip(medians, sizes, strict=True)), 40):
            other = sum(abs((alpha + beta * s) / m - 1) for m, s in zip(medians, sizes, strict=True))
            assert other >= best - 1e-9


def test_a_protocol_switch_is_found_where_it_is() -> None:
    eager = [1_000 + 1.0 * size for size in SIZES[:8]]  # up to 16 KiB
    rendezvous = [40_000 + 0.1 * size for size in SIZES[8:]]
    first, second = pieces(SIZES, eager + rendezvous)
    assert (first.largest_bytes, second.smallest_bytes) == (4**7, 4**8)
    assert (first.alpha_ns, first.beta_ns_per_byte) == (pytest.approx(1_000), pytest.approx(1.0))
    assert (second.alpha_ns, second.beta_ns_per_byte) == (pytest.approx(40_000), pytest.approx(0.1))


def test_the_table_holds_a_line_per_protocol_and_the_misfit_of_the_one_line() -> None:
    def truth(size: int) -> float:
        return 1_000 + 1.0 * size if size < 2**16 else 40_000 + 0.1 * size

    link = fit_link(0, 1, "mpi", {size: np.full(10, truth(size)) for size in SIZES})
    assert [(p.smallest_bytes, p.largest_bytes, p.latency_ns, p.bandwidth_bytes_per_s) for p in link.pieces] == [
        (1, 4**7, 1_000, 10**9),
        (4**8, 4**11, 40_000, 10**10),
    ]
    line = [link.latency_ns + size * 1e9 / (link.bandwidth_bytes_per_s or 1) for size in SIZES]
    assert link.residuals == pytest.approx([t / truth(s) - 1 for s, t in zip(SIZES, line, strict=True)], abs=1e-3)
    assert fit_link(0, 1, "mpi", {size: np.full(10, 5e3 + size) for size in SIZES}).pieces == ()


def test_one_protocol_stays_one_piece_even_with_noise() -> None:
    rng = np.random.default_rng(5)
    assert len(pieces(SIZES, [(9_000 + 0.2 * size) * rng.lognormal(0, 0.05) for size in SIZES])) == 1


def test_the_value_at_a_message_size() -> None:
    link = Link(
        source=0,
        target=1,
        transport="gloo",
        latency_ns=1_000,
        bandwidth_bytes_per_s=10**9,
        sizes_bytes=(100, 300),
        medians_ns=(1_200, 1_800),
    )
    assert link.value_at(200) == (1_500, True)
    assert link.value_at(300) == (1_800, True)
    assert link.value_at(1_300) == (2_800, False)  # 1000 bytes beyond the last, at 1 ns a byte
    assert link.value_at(40) == (1_140, False)


@pytest.mark.parametrize(("sizes", "medians"), [([], []), ([1, 1], [5, 5]), ([1, 2], [5, 0]), ([0, 2], [5, 6])])
def test_what_cannot_be_fitted_is_refused(sizes: list[int], medians: list[float]) -> None:
    with pytest.raises(ValueError, match="a line needs"):
        fit_line(sizes, medians)
