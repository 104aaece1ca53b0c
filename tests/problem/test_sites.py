"""Site pairs from rank pairs, worked by hand."""

import msgspec

from crosspipe.problem import Spread
from crosspipe.problem.links import Link, LinkTable, Stream
from crosspipe.problem.sites import site_links


def table(latencies: dict[tuple[int, int], int], bandwidths: dict[tuple[int, int], int | None]) -> LinkTable:
    return LinkTable(
        links=tuple(
            Link(
                source=a, target=b, transport="gloo", latency_ns=ns, bandwidth_bytes_per_s=bandwidths.get((a, b), 10**9)
            )
            for (a, b), ns in latencies.items()
        ),
        site_of_rank=(0, 0, 1, 1),
    )


def test_medians_and_ranges_of_the_pairs_between_two_sites() -> None:
    there = {(0, 2): 100, (0, 3): 120, (1, 2): 130, (1, 3): 900}
    back = {(2, 0): 110, (3, 0): 118, (2, 1): 131, (3, 1): 140}
    inside = {(0, 1): 7}
    across = {(0, 2): 10**9, (0, 3): 2 * 10**9, (1, 2): 4 * 10**9, (1, 3): 4 * 10**9}
    own, forth, home = site_links(table(there | back | inside, across))
    assert (own.source_site, own.target_site, own.pairs, own.latency_ns) == (0, 0, 1, 7)
    assert (forth.source_site, forth.target_site, forth.pairs) == (0, 1, 4)
    assert (forth.latency_ns, forth.latency_range_ns) == (125, (100, 900))
    assert (forth.bandwidth_bytes_per_s, forth.bandwidth_range_bytes_per_s) == (3 * 10**9, (10**9, 4 * 10**9))
    assert (home.latency_ns, home.bandwidth_bytes_per_s) == (124, 10**9)  # the median of 110, 118, 131, 140
    assert (own.symmetric, forth.symmetric, home.symmetric) == (True, False, False)  # alike in alpha, not in bandwidth


def test_one_direction_alone_says_nothing_of_symmetry() -> None:
    (only,) = site_links(table({(0, 2): 100}, {(0, 2): None}))
    assert only.symmetric is None
    assert (only.bandwidth_bytes_per_s, only.bandwidth_range_bytes_per_s) == (None, None)


def test_windows_tell_a_direction_that_is_slower_than_the_other() -> None:
    measured = table({(0, 2): 100, (1, 3): 100, (2, 0): 100, (3, 1): 100}, {})

    def one_way(link: Link) -> Link:
        rate = 10**9 if link.source < 2 else 2 * 10**8
        streams = (
            Stream(pattern=pattern, size_bytes=size, window=4, bytes_per_s=Spread(median=m, low=m, high=m, samples=9))
            for pattern, size, m in (("one_way", 2**10, 5.0), ("one_way", 2**20, rate), ("both_ways", 2**22, 7.0))
        )
        return msgspec.structs.replace(link, streams=tuple(streams))

    forth, home = site_links(measured)
    assert (forth.symmetric, home.symmetric, forth.streamed_bytes_per_s) == (True, True, None)
    forth, home = site_links(msgspec.structs.replace(measured, links=tuple(map(one_way, measured.links))))
    assert (forth.streamed_bytes_per_s, home.streamed_bytes_per_s) == (10**9, 2 * 10**8)
    assert (forth.symmetric, home.symmetric) == (False, False)


def test_a_transport_that_was_not_measured_has_no_links() -> None:
    assert site_links(table({(0, 2): 100}, {}), "nccl") == ()


def test_a_pair_without_byte_cost_is_the_fastest_of_the_median() -> None:
    bandwidths = {(0, 2): 10**9, (0, 3): 2 * 10**9, (1, 2): None}
    (three,) = site_links(table(dict.fromkeys(bandwidths, 100), bandwidths))
    assert three.bandwidth_bytes_per_s == 2 * 10**9
    (half,) = site_links(table({(0, 2): 100, (0, 3): 100}, {(0, 2): 10**9, (0, 3): None}))
    assert half.bandwidth_bytes_per_s is None


def test_directions_that_differ_by_noise_are_symmetric() -> None:
    measured = table({(0, 2): 5000, (2, 0): 6000}, {})

    def known_to(half: int) -> LinkTable:
        links = (
            msgspec.structs.replace(
                x, latency=Spread(median=x.latency_ns, low=x.latency_ns - half, high=x.latency_ns + half, samples=9)
            )
            for x in measured.links
        )
        return msgspec.structs.replace(measured, links=tuple(links))

    assert [x.symmetric for x in site_links(known_to(600))] == [True, True]  # 4400 to 5600 and 5400 to 6600
    assert [x.symmetric for x in site_links(known_to(400))] == [False, False]  # to 5400, from 5600
