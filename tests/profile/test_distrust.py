"""Every reason for distrust on an input crafted to have it, and its absence on one that has not."""

import numpy as np
import pytest

from crosspipe.problem import Finding, Link
from crosspipe.profile.distrust import (
    Clocks,
    bad_samples,
    bimodal,
    clock_steps,
    placement,
    protocol_switches,
    read_clocks,
    sizes_skipped,
    slow_ranks,
    two_modes,
    unit_slips,
    usable,
)
from crosspipe.profile.pingpong import Skipped
from crosspipe.profile.places import Place


def place(rank: int, site: int, *, node: str, machine: str = "m0", network: str = "net0") -> Place:
    return Place(rank=rank, site=site, node=node, host="vm", machine=machine, network=network, cores=(0,))


def link(source: int, target: int, latency_ns: int = 50_000, bandwidth: int | None = 10**9, mode: str = "mpi") -> Link:
    return Link(source=source, target=target, transport=mode, latency_ns=latency_ns, bandwidth_bytes_per_s=bandwidth)


def names(findings: list[Finding]) -> list[str]:
    return [found.name for found in findings]


def test_two_names_of_one_machine_are_told() -> None:
    disguised = placement([place(0, 0, node="nid001"), place(1, 1, node="nid002")], ["mpi"], {})
    assert names(disguised) == ["nodes_are_one", "shared_memory"]
    assert "nid001 (rank 0) and nid002 (rank 1) are one machine" in disguised[0].detail
    assert "1 of 1 pairs of ranks in different sites" in disguised[1].detail


def test_the_medium_between_ranks_of_one_machine_depends_on_transport_and_environment() -> None:
    together = [place(0, 0, node="vm"), place(1, 1, node="vm")]
    assert names(placement(together, ["mpi", "gloo"], {})) == ["shared_memory", "loopback"]
    for environ, expected in [  # as seen with MPICH 5.0 by the bytes that passed the loopback interface
        ({"UCX_TLS": "tcp,self"}, "shared_memory"),
        ({"MPIR_CVAR_NOLOCAL": "1"}, "shared_memory"),
        ({"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}, "loopback"),
        ({"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "^shm"}, "loopback"),
        ({"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "rc,sm"}, "shared_memory"),
    ]:
        assert names(placement(together, ["mpi"], environ)) == [expected], environ
    apart = [place(0, 0, node="a"), place(1, 1, node="b", network="net1")]  # two network namespaces of one kernel
    assert names(placement(apart, ["gloo"], {})) == []
    assert names(placement(apart, ["mpi"], {})) == ["shared_memory"]
    assert names(placement(apart, ["mpi"], {"UCX_TLS": "tcp,self"})) == []


def test_ranks_that_share_a_node_of_their_own_site_are_no_finding() -> None:
    honest = [place(rank, rank // 2, node=f"n{rank // 2}", machine=f"m{rank // 2}") for rank in range(4)]
    assert placement(honest, ["mpi", "gloo"], {}) == []


def test_one_site_on_one_machine_measures_no_network() -> None:
    assert names(placement([place(0, 0, node="vm"), place(1, 0, node="vm")], ["gloo"], {})) == ["loopback"]
    some_apart = [place(0, 0, node="a"), place(1, 0, node="a"), place(2, 0, node="b", machine="m1")]
    assert placement(some_apart, ["gloo"], {}) == []


def test_spoilt_samples_name_rank_peer_and_size() -> None:
    expected = [("mpi", source, 1 - source, size) for source in (0, 1) for size in (8, 4096)]
    samples = {key: np.array([5e3, 6e3]) for key in expected}
    samples["mpi", 0, 1, 4096] = np.array([5e3, np.nan, np.nan])
    samples["mpi", 1, 0, 8] = np.array([5e3, -40.0, 0.0])
    del samples["mpi", 1, 0, 4096]
    nan, negative, missing = bad_samples(samples, expected)
    assert (nan.name, nan.detail) == ("nan_samples", "2 of 3 from rank 0 to peer 1, 4096 bytes over mpi")
    assert negative.name == "negative_samples"
    assert negative.detail == "2 of 3 from rank 1 to peer 0, 8 bytes over mpi, down to -40 ns"
    assert (missing.name, missing.detail) == ("missing_samples", "none from rank 1 to peer 0, 4096 bytes over mpi")
    assert usable(np.array([5e3, np.nan, -1.0, 0.0, np.inf])).tolist() == [5e3]


def test_samples_that_are_all_nan_are_reported_without_a_warning() -> None:
    key = ("gloo", 2, 3, 1)
    (nan,) = bad_samples({key: np.array([np.nan])}, [key])
    assert nan.detail == "1 of 1 from rank 2 to peer 3, 1 bytes over gloo"


def test_a_long_list_is_cut_but_counted() -> None:
    (missing,) = bad_samples({}, [("mpi", 0, 1, size) for size in range(1, 11)])
    assert missing.detail.count("from rank 0") == 3
    assert missing.detail.endswith("; and 7 more")


def test_two_modes_are_told_with_their_share() -> None:
    times = np.array([10_000.0] * 30 + [25_000.0] * 10)
    assert two_modes(times) == (10_000.0, 25_000.0, 0.25)
    (found,) = bimodal({("mpi", 0, 1, 64): times})
    assert found.detail == "from rank 0 to peer 1, 64 bytes over mpi: 10.0 us, but 25.0 us in 25% of the samples"


def test_ten_round_trips_tell_two_modes_where_they_are_clear() -> None:
    times = np.array([30_000.0, 31_000, 30_500, 30_200, 30_900, 30_100, 30_300, 60_000, 60_900, 61_000])
    assert two_modes(times) == (30_300.0, 60_900.0, pytest.approx(0.3))
    two_stalls = np.where(times > 60_500, 30_000.0, times)
    assert two_modes(two_stalls) is None  # one of ten
    assert two_modes(times[1:]) is None  # nine
    rng = np.random.default_rng(11)
    draws = [rng.uniform(5_000, 15_000, 10) for _ in range(500)] + [rng.normal(10_000, 2_000, 10) for _ in range(500)]
    assert sum(two_modes(draw) is not None for draw in draws) <= 10  # chance makes groups of few samples


@pytest.mark.parametrize("shape", ["normal", "uniform", "outliers", "constant", "close"])
def test_one_mode_is_not_called_two(shape: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        times = {
            "normal": rng.normal(10_000, 1_000, 25),
            "uniform": rng.uniform(5_000, 15_000, 50),
            "outliers": np.concatenate([rng.normal(10_000, 300, 45), rng.uniform(20_000, 90_000, 5)]),
            "constant": np.full(25, 9_000.0),
            "close": np.concatenate([np.full(20, 10_000.0), np.full(20, 11_000.0)]),
        }[shape]
        assert two_modes(times) is None


def test_a_protocol_switch_is_told_with_its_size_and_the_misfit() -> None:
    sizes = tuple(4**power for power in range(12))
    medians = tuple(1_000 + size for size in sizes[:8]) + tuple(400_000 + size // 10 for size in sizes[8:])
    switching = Link(
        source=0,
        target=1,
        transport="mpi",
        latency_ns=1,
        bandwidth_bytes_per_s=None,
        sizes_bytes=sizes,
        medians_ns=medians,
    )
    (found,) = protocol_switches([switching])
    assert found.name == "protocol_switch"
    assert "mpi 0->1 changes at 65536 bytes" in found.detail


@pytest.mark.parametrize("factor", [1000, 1024])
def test_a_slip_of_units_stands_out_among_its_neighbours(factor: int) -> None:
    sites = [0, 0, 1, 1]
    links = [link(a, b) for a in range(4) for b in range(4) if a != b]
    slipped = [link(x.source, x.target, x.latency_ns, 10**9 * factor) if x is links[1] else x for x in links]
    (found,) = unit_slips(slipped, sites)
    assert found.name == "unit_slip"
    assert found.detail.startswith(f"mpi 0->2: bandwidth_bytes_per_s = {10**9 * factor}, {factor} times")
    assert unit_slips(links, sites) == []


def test_a_latency_far_from_its_neighbours_is_told_but_distant_sites_are_not() -> None:
    near_and_far = [link(0, 1, 5_000), link(1, 0, 5_000), link(0, 2, 400_000), link(2, 0, 400_000)]
    assert unit_slips(near_and_far, [0, 1, 2]) == []  # 80 times as far: geography
    same_two_sites = [link(0, 2), link(2, 0), link(1, 2), link(2, 1, 900_000)]
    (found,) = unit_slips(same_two_sites, [0, 0, 1])
    assert (found.name, found.detail[:35]) == ("far_from_neighbours", "mpi 2->1: latency_ns = 900000, 18 t")


def test_both_directions_of_one_link_are_neighbours() -> None:
    there_and_back = [link(0, 1, 5_000), link(1, 0, 60_000)]
    (found,) = unit_slips(there_and_back, [0, 1])
    assert found.name == "far_from_neighbours"
    assert found.detail.startswith("mpi 0->1: latency_ns = 5000, 12 times from its neighbours' 60000")
    assert unit_slips([link(0, 1, 5_000), link(1, 0, 45_000)], [0, 1]) == []


def test_a_slow_rank_is_named_and_its_peers_are_not() -> None:
    sites = [0, 0, 1, 1]
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]

    def latency(a: int, b: int) -> int:
        return (200_000 if sites[a] != sites[b] else 20_000) * (3 if 3 in (a, b) else 1)

    (found,) = slow_ranks([link(a, b, latency(a, b)) for a, b in pairs], sites)
    assert (found.name, found.detail) == ("slow_rank", "mpi: rank 3's alpha is 3.0 times that of its peers")
    (found,) = slow_ranks([link(a, b, bandwidth=10**8 if 0 in (a, b) else 10**9) for a, b in pairs], sites)
    assert found.detail == "mpi: rank 0's time per byte is 10.0 times that of its peers"
    assert slow_ranks([link(a, b, 10 if sites[a] == sites[b] else 999) for a, b in pairs], sites) == []
    assert slow_ranks([link(0, 1), link(1, 0)], [0, 1]) == []  # nobody to compare with
    (found,) = slow_ranks([link(a, b, latency(a, b)) for a, b in pairs], sites, ["n0", "n1", "n2", "n3"])
    assert found.detail == "mpi: rank 3 (n3)'s alpha is 3.0 times that of its peers"


def test_a_clock_that_steps_is_told_and_one_that_slews_is_not() -> None:
    second = 10**9
    before = [Clocks(wall_ns=0, monotonic_ns=0)] * 3
    after = [
        Clocks(wall_ns=60 * second, monotonic_ns=60 * second),
        Clocks(wall_ns=57 * second, monotonic_ns=60 * second),
        Clocks(wall_ns=60 * second + 30_000_000, monotonic_ns=60 * second),  # 500 ppm, as NTP may
    ]
    (found,) = clock_steps(before, after)
    assert (found.name, found.detail) == ("clock_step", "rank 1's wall clock moved by -3.000 s in 60.0 s")
    first = read_clocks()
    assert clock_steps([first], [read_clocks()]) == []


def test_sizes_skipped_are_named_by_pair() -> None:
    skipped = [Skipped("ping_pong", "gloo", 0, 2, size) for size in (4194304, 1048576)]
    (found,) = sizes_skipped([*skipped, Skipped("one_way", "gloo", 0, 2, 65536)])
    assert found.name == "sizes_skipped"
    assert found.detail == (
        "no time for ping-pong from 0 to 2 over gloo of 1048576, 4194304 bytes; "
        "no time for one_way windows from 0 to 2 over gloo of 65536 bytes"
    )
    assert sizes_skipped([]) == []
