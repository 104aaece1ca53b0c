"""Windows of messages in flight: rates worked by hand, on links whose alpha, beta and sharing are known."""

import msgspec
import numpy as np
import pytest

from crosspipe.problem import Link
from crosspipe.profile.pingpong import slots
from crosspipe.profile.streams import contention, crossings, patterns, rate, stream_sizes, window_of, with_streams

MIB = 2**20
ALPHA_NS, BETA = 20_000_000, 10.0  # 20 ms a way, 100 MB/s
SITES = (0, 0, 1, 1)


def link(source: int, target: int) -> Link:
    return Link(
        source=source,
        target=target,
        transport="gloo",
        latency_ns=ALPHA_NS,
        bandwidth_bytes_per_s=10**8,
        sizes_bytes=(1, MIB),
        medians_ns=(ALPHA_NS, ALPHA_NS + round(BETA * MIB)),
    )


def took(window: int, size: int, *, slower: float = 1.0) -> np.ndarray:
    return np.full(12, 2 * ALPHA_NS + slower * BETA * window * size)


def test_the_empty_round_trip_is_not_part_of_the_rate() -> None:
    found = rate(took(8, MIB), 8 * MIB, 2 * ALPHA_NS)  # 40 ms empty, 84 ms of bytes
    assert found is not None
    assert found.median == pytest.approx(1e8)
    assert (found.low, found.high, found.samples) == (pytest.approx(1e8), pytest.approx(1e8), 12)


def test_the_interval_of_the_rate_turns_that_of_the_time_around() -> None:
    times = np.array([200.0] * 5 + [300.0] * 2 + [400.0] * 5)  # 95 %: 200 to 400
    found = rate(times, 1000, 100.0)
    assert found is not None
    assert (found.low, found.median, found.high) == (1000 / 300e-9, 1000 / 200e-9, 1000 / 100e-9)


def test_a_window_that_the_round_trip_outlasts_says_nothing() -> None:
    assert rate(took(2, 64), 128, 2 * ALPHA_NS) is None


def test_windows_hold_four_mib_or_two_messages_or_sixty_four() -> None:
    assert [window_of(size) for size in (1, 65536, 262144, 4 * MIB, 64 * MIB)] == [64, 64, 16, 2, 2]
    # 40 ms of 10 Gbit/s hold 50 MB: four times that, but no more than 64 messages or 256 MiB
    assert [window_of(size, 50e6) for size in (MIB, 4 * MIB, 64 * MIB)] == [64, 47, 2]
    assert [window_of(size, 1e12) for size in (4 * MIB, 16 * MIB, 256 * MIB)] == [64, 16, 2]
    assert window_of(MIB, 0.5e6) == 4  # 2 MB would do, but 4 MiB it is
    assert stream_sizes((1, 4096, 16384, MIB)) == (16384, MIB)
    assert stream_sizes((1, 8)) == (8,)


@pytest.mark.parametrize("smallest", [1, 65536])
def test_the_bytes_of_the_smallest_ping_pong_are_no_empty_trip(smallest: int) -> None:
    times = tuple(ALPHA_NS + round(BETA * size) for size in (smallest, MIB))
    known = msgspec.structs.replace(link(0, 2), sizes_bytes=(smallest, MIB), medians_ns=times)
    (streaming,) = with_streams([known], {("one_way", "gloo", 0, 2, MIB, 8): took(8, MIB)})
    assert streaming.streams[0].bytes_per_s.median == pytest.approx(1e8, rel=1e-6)


def test_both_ways_is_measured_once_a_pair() -> None:
    assert patterns(0, 1) == ("one_way", "both_ways")
    assert patterns(1, 0) == ("one_way",)


def test_as_many_pairs_as_the_smaller_site_has_cross_at_once() -> None:
    assert crossings((0, 0, 1, 1)) == (((0, 2), (1, 3)), ((2, 0), (3, 1)))
    assert crossings((0, 0, 0, 1, 1, 2)) == (((0, 3), (1, 4)), ((3, 0), (4, 1)))
    assert crossings((0, 1)) == crossings((0, 0)) == ()


@pytest.mark.parametrize(("slower", "kept"), [(1.0, 1.0), (2.0, 0.5)])
def test_pairs_that_share_a_wire_keep_half(slower: float, kept: float) -> None:
    links = [link(a, b) for a, b in ((0, 2), (1, 3))]
    windows = {("one_way", "gloo", a, b, MIB, 8): took(8, MIB) for a, b in ((0, 2), (1, 3))}
    windows |= {("together", "gloo", a, b, MIB, 8): took(8, MIB, slower=slower) for a, b in ((0, 2), (1, 3))}
    streaming = with_streams(links, windows)
    assert [[s.pattern for s in x.streams] for x in streaming] == [["one_way"], ["one_way"]]
    (seen,) = contention(streaming, windows, SITES, {((0, 2), (1, 3)): False})
    assert (seen.source_site, seen.target_site, seen.pairs, seen.enough_cores) == (0, 1, ((0, 2), (1, 3)), False)
    assert seen.kept_share == pytest.approx(kept)


def test_pairs_together_may_have_windows_of_their_own() -> None:
    windows = {("one_way", "gloo", a, b, MIB, w): took(w, MIB) for a, b, w in ((0, 2, 8), (1, 3, 16))}
    windows |= {("together", "gloo", a, b, MIB, w): took(w, MIB) for a, b, w in ((0, 2, 8), (1, 3, 16))}
    (seen,) = contention(with_streams([link(0, 2), link(1, 3)], windows), windows, SITES, {})
    assert (seen.pairs, seen.window) == (((0, 2), (1, 3)), 16)
    assert [rate.median for rate in seen.together] == pytest.approx([1e8, 1e8])


def test_pairs_of_which_one_was_not_measured_are_not_compared() -> None:
    windows = {("one_way", "gloo", 0, 2, MIB, 8): took(8, MIB), ("together", "gloo", 0, 2, MIB, 8): took(8, MIB)}
    assert contention(with_streams([link(0, 2)], windows), windows, SITES, {}) == ()


def test_a_window_larger_than_the_buffer_is_received_into_it_again_and_again():
    assert slots(b"0123456789", 4, 3) == [b"0123", b"4567", b"0123"]
    assert slots(b"0123456789", 4, 1) == [b"0123"]
