"""The table from crafted samples: what is fitted, what is left out, and what is said about it."""

from itertools import permutations

import numpy as np

from crosspipe.problem import LinkTable
from crosspipe.profile.link_table import build_table, describe
from crosspipe.profile.pingpong import Rule, Skipped
from crosspipe.profile.places import Place

SIZES = (1, 1024, 1048576)
PLACES = [
    Place(rank=rank, site=rank // 2, node=f"n{rank}", host=f"n{rank}", machine=f"m{rank}", network="net", cores=(0, 1))
    for rank in range(4)
]


def samples(alpha_ns: float, beta: float) -> dict[tuple[str, int, int, int], np.ndarray]:
    return {
        (transport, source, target, size): np.full(10, alpha_ns + beta * size)
        for transport in ("mpi", "gloo")
        for source, target in permutations(range(4), 2)
        for size in SIZES
    }


def build(times: dict[tuple[str, int, int, int], np.ndarray]) -> LinkTable:
    return build_table(
        times, places=PLACES, transports=("mpi", "gloo"), sizes_bytes=SIZES, environ={}, environment={"a": "b"}
    )


def test_every_ordered_pair_over_every_transport_is_fitted() -> None:
    table = build(samples(20_000, 0.5))
    assert {(x.transport, x.source, x.target) for x in table.links} == {
        (transport, *pair) for transport in ("mpi", "gloo") for pair in permutations(range(4), 2)
    }
    assert {(x.latency_ns, x.bandwidth_bytes_per_s) for x in table.links} == {(20_000, 2 * 10**9)}
    assert (table.run_transport, table.site_of_rank, table.node_of_rank) == (
        "gloo",
        (0, 0, 1, 1),
        ("n0", "n1", "n2", "n3"),
    )
    assert table.findings == ()
    assert table.between(1, 2).transport == "gloo"


def test_spoilt_samples_are_said_and_left_out_of_the_fit() -> None:
    times = samples(20_000, 0.5)
    times["gloo", 0, 1, 1024] = np.array([np.nan, -3.0, 0.0])
    for size in SIZES:
        del times["mpi", 3, 2, size]
    table = build(times)
    assert (table.between(0, 1).latency_ns, table.between(0, 1).sizes_bytes) == (20_000, (1, 1048576))
    assert len(table.links) == 23
    said = {found.name: found.detail for found in table.findings}
    assert list(said) == ["nan_samples", "negative_samples", "missing_samples"]
    assert "rank 3 to peer 2, 1024 bytes over mpi" in said["missing_samples"]


def test_spoilt_windows_are_said_too() -> None:
    took = np.array([np.nan, 9e6, 0.0])
    table = build_table(
        samples(20_000, 0.5), {("one_way", "gloo", 0, 2, 65536, 64): took}, places=PLACES, transports=("mpi", "gloo"),
        sizes_bytes=SIZES, environ={}, environment={},
    )  # fmt: skip
    said = {found.name: found.detail for found in table.findings}
    assert list(said) == ["nan_samples", "negative_samples"]
    assert said["nan_samples"] == "1 of 3 from rank 0 to peer 2, 65536 bytes over gloo (one_way windows of 64)"


def test_sizes_that_were_skipped_are_not_missing() -> None:
    times = samples(20_000, 0.5)
    del times["gloo", 0, 2, 1048576]
    table = build_table(
        times, places=PLACES, transports=("mpi", "gloo"), sizes_bytes=SIZES, environ={}, environment={},
        skipped=[Skipped("ping_pong", "gloo", 0, 2, 1048576)],
    )  # fmt: skip
    assert [found.name for found in table.findings] == ["sizes_skipped"]
    assert table.between(0, 2).sizes_bytes == (1, 1024)


def test_the_record_says_how_many_sizes_settled_and_over_what_media() -> None:
    times = {("mpi", 0, 1, 1): np.full(10, 5e3), ("mpi", 1, 0, 1): np.linspace(1e3, 9e3, 10)}
    said = describe(
        times,
        places=PLACES[:2],
        transports=("mpi",),
        rule=Rule(),
        environ={"UCX_TLS": "tcp", "SLURM_JOB_ID": "7"},
        library="MPICH Version: 5.0.2",
    )
    assert said["sizes_settled"] == "1 of 2"
    assert said["medium_mpi"] == "network: 1 pairs"
    assert (said["slurm_job"], said["UCX_TLS"], said["cores_per_rank"]) == ("7", "tcp", "2, 2")
