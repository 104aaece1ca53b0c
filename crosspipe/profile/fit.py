"""From ping-pong samples to alpha and beta: a robust line through the medians, its intervals, and where it misfits.

The line t = alpha + beta*s minimises the sum of *relative* absolute errors over the sizes, so a size counts the same
whether it takes microseconds or seconds, and a few sizes slowed by something else do not move it; alpha and beta are
never negative. It is exact: the minimum of this linear programme lies on a line through two medians, or through one
with alpha or beta 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosspipe.problem import Link, Spread
from crosspipe.problem.links import Piece

Floats = NDArray[np.float64]

SWITCH_MISFIT = 0.1  # a mean relative misfit below this is one line, whatever two lines could do
POINTS_PER_PIECE = 3


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """t = alpha_ns + beta_ns_per_byte * bytes on messages of `smallest_bytes` to `largest_bytes`."""

    alpha_ns: float
    beta_ns_per_byte: float
    smallest_bytes: int
    largest_bytes: int

    def at(self, size_bytes: float) -> float:
        """Time of one message in ns."""
        return self.alpha_ns + self.beta_ns_per_byte * size_bytes


def fit_lines(sizes: Floats, medians: Floats) -> tuple[Floats, Floats]:
    """Alpha (ns) and beta (ns per byte) of every row of `medians` (rows x sizes, ns > 0); `sizes` distinct and > 0."""
    first, second = np.triu_indices(len(sizes), 1)
    slope = (medians[:, second] - medians[:, first]) / (sizes[second] - sizes[first])
    alphas = np.concatenate([medians[:, first] - slope * sizes[first], medians, np.zeros_like(medians)], axis=1)
    betas = np.concatenate([slope, np.zeros_like(medians), medians / sizes], axis=1)
    times = alphas[:, :, None] + betas[:, :, None] * sizes
    error = np.abs(times / medians[:, None, :] - 1).sum(axis=2)
    error[(alphas < 0) | (betas < 0)] = np.inf
    best = error.argmin(axis=1)[:, None]
    return np.take_along_axis(alphas, best, 1)[:, 0], np.take_along_axis(betas, best, 1)[:, 0]


def fit_line(sizes: Sequence[int], medians: Sequence[float]) -> Line:
    """The one line through the medians (ns) of the sizes (bytes). Raises ValueError where there is nothing to fit."""
    if not sizes or len(sizes) != len(medians) or len(set(sizes)) != len(sizes) or min(sizes) < 1:
        raise ValueError(f"a line needs distinct sizes >= 1 with one median each, not {sizes} and {len(medians)}")
    if not all(0 < median < math.inf for median in medians):
        raise ValueError(f"a line needs medians > 0, not {list(medians)}")
    alpha, beta = fit_lines(np.array(sizes, dtype=float), np.array([medians], dtype=float))
    return Line(
        alpha_ns=float(alpha[0]),
        beta_ns_per_byte=float(beta[0]),
        smallest_bytes=min(sizes),
        largest_bytes=max(sizes),
    )


def residuals(line: Line, sizes: Sequence[int], medians: Sequence[float]) -> tuple[float, ...]:
    """Relative misfit (line / median - 1) at each size."""
    return tuple(line.at(size) / median - 1 for size, median in zip(sizes, medians, strict=True))


def pieces(sizes: Sequence[int], medians: Sequence[float]) -> tuple[Line, ...]:
    """One line per protocol of the transport, in order of size; one piece where a single line is good enough.

    Sizes ascend. A range is cut where two lines (of 3 sizes or more each) leave the least misfit, if that is less than
    half of what one line leaves and one line is off by more than 10 % in the mean.
    """

    def misfit(part: slice) -> float:
        line = fit_line(sizes[part], medians[part])
        return sum(map(abs, residuals(line, sizes[part], medians[part])))

    count = len(sizes)
    whole = fit_line(sizes, medians)
    single = misfit(slice(None))
    if count < 2 * POINTS_PER_PIECE or single <= SWITCH_MISFIT * count:
        return (whole,)
    cuts = range(POINTS_PER_PIECE, count - POINTS_PER_PIECE + 1)
    cost, cut = min((misfit(slice(None, c)) + misfit(slice(c, None)), c) for c in cuts)
    if cost > single / 2:
        return (whole,)
    return pieces(sizes[:cut], medians[:cut]) + pieces(sizes[cut:], medians[cut:])


def fit_link(
    source: int,
    target: int,
    transport: str,
    one_way_ns: Mapping[int, Floats],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Link:
    """The Link of one ordered pair from its samples, `one_way_ns[size_bytes]` (ns, > 0, at least one a size).

    The 95 % intervals of alpha and beta come from a bootstrap of the medians: the median of a resample of n sorted
    samples is the one whose rank, as a share of n, is Beta((n + 1) / 2, (n + 1) / 2) distributed (Maritz and Jarrett,
    1978). They say how well the *line* is known, not how well a line describes the link: that is `residual`.
    """
    sizes = sorted(one_way_ns)
    ordered = [np.sort(one_way_ns[size]) for size in sizes]
    medians = [float(np.median(samples)) for samples in ordered]
    line = fit_line(sizes, medians)
    rng = np.random.default_rng((seed, source, target))
    drawn = np.stack([_resampled_medians(samples, resamples, rng) for samples in ordered], axis=1)
    alphas, betas = fit_lines(np.array(sizes, dtype=float), drawn)
    count = sum(map(len, ordered))
    beta = line.beta_ns_per_byte
    return Link(
        source=source,
        target=target,
        transport=transport,
        latency_ns=round(line.alpha_ns),
        bandwidth_bytes_per_s=_bandwidth(beta),
        latency=_interval(line.alpha_ns, alphas, count),
        inverse_bandwidth=_interval(beta, betas, count),
        residual=float(np.median(np.abs(residuals(line, sizes, medians)))),
        sizes_bytes=tuple(sizes),
        medians_ns=tuple(round(median) for median in medians),
        pieces=tuple(map(_piece, lines)) if len(lines := pieces(sizes, medians)) > 1 else (),
    )


def _piece(line: Line) -> Piece:
    return Piece(
        smallest_bytes=line.smallest_bytes,
        largest_bytes=line.largest_bytes,
        latency_ns=round(line.alpha_ns),
        bandwidth_bytes_per_s=_bandwidth(line.beta_ns_per_byte),
    )


def _bandwidth(beta: float) -> int | None:
    return None if beta == 0 else max(1, round(1e9 / beta))


def _resampled_medians(ordered: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    half = (len(ordered) + 1) / 2
    ranks = (rng.beta(half, half, size=resamples) * len(ordered)).astype(int)
    medians: Floats = ordered[np.minimum(ranks, len(ordered) - 1)]
    return medians


def _interval(value: float, drawn: Floats, samples: int) -> Spread:
    low, high = (float(edge) for edge in np.percentile(drawn, [2.5, 97.5]))
    return Spread(median=value, low=min(low, value), high=max(high, value), samples=samples)
