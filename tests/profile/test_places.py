"""The world's size against what was started, for the launchers people use, and where a process sits."""

import os
import socket

import pytest

from crosspipe.errors import FieldError
from crosspipe.profile.places import Place, check_world, device_of, here, medium, transport_environment

MPICH = "MPICH Version: 5.0.2"


@pytest.mark.parametrize(
    ("world", "sites", "ranks", "environ"),
    [
        (4, 4, 4, {"PMI_SIZE": "4"}),
        (4, None, None, {}),
        (4, 4, None, {"SLURM_STEP_NUM_TASKS": "1"}),  # mpiexec inside a step of one task, as submitit starts it
    ],
)
def test_a_world_of_the_right_size_passes(
    world: int, sites: int | None, ranks: int | None, environ: dict[str, str]
) -> None:
    check_world(world, sites=sites, ranks=ranks, environ=environ, library=MPICH)


@pytest.mark.parametrize(
    ("world", "sites", "ranks", "environ", "said"),
    [
        (1, 4, None, {"SLURM_STEP_NUM_TASKS": "4"}, ["= 1", "--sites is for 4", "srun's --mpi", "--mpi=pmi2"]),
        (1, None, None, {"SLURM_STEP_NUM_TASKS": "8"}, ["says 8 tasks", "srun's --mpi", MPICH]),
        (1, None, None, {"OMPI_COMM_WORLD_SIZE": "4"}, ["says 4 tasks", "mpiexec belongs to another MPI"]),
        (1, None, 4, {}, ["--ranks is for 4", "mpiexec belongs to another MPI, or is missing"]),
        (2, 4, None, {"PMI_SIZE": "2"}, ["= 2", "--sites is for 4", "start 4 ranks"]),
        (4, 2, None, {}, ["= 4", "--sites is for 2", "one site for each of these 4"]),
    ],
)
def test_a_wrong_world_is_refused_with_its_likely_cause(
    world: int, sites: int | None, ranks: int | None, environ: dict[str, str], said: list[str]
) -> None:
    with pytest.raises(FieldError) as refused:
        check_world(world, sites=sites, ranks=ranks, environ=environ, library=MPICH)
    assert all(part in str(refused.value) for part in said), str(refused.value)


def test_where_this_process_sits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "nid007")
    found = here(3, 1)
    assert (found.rank, found.site, found.node, found.host) == (3, 1, "nid007", socket.gethostname())
    assert set(found.cores) == os.sched_getaffinity(0)


def test_only_what_steers_transports_is_recorded() -> None:
    environ = {"UCX_TLS": "tcp", "HOME": "/root", "FI_PROVIDER": "cxi", "SECRET": "x"}
    assert transport_environment(environ) == {"FI_PROVIDER": "cxi", "UCX_TLS": "tcp"}


def test_nccl_inside_a_machine_is_no_loopback() -> None:
    one, other, far = (
        Place(rank=r, site=0, node="a", host="a", machine=machine, network="n", cores=(0,))
        for r, machine in enumerate(("m", "m", "far"))
    )
    assert medium("nccl", one, other, {}) == medium("mpi_device", one, other, {}) == "shared memory"
    assert medium("gloo", one, other, {}) == "loopback"
    assert medium("nccl", one, far, {}) == "network"


def test_ranks_of_a_machine_take_its_gpus_in_turn() -> None:
    places = [
        Place(rank=rank, site=0, node=machine, host=machine, machine=machine, network="n", cores=(0,))
        for rank, machine in enumerate("abab")
    ]
    assert [device_of(rank, places, 2, "nccl") for rank in range(4)] == [0, 0, 1, 1]
    assert [device_of(rank, places, 1, "nccl") for rank in range(4)] == [0, 0, 0, 0]  # each sees its own only
    crowd = [Place(rank=r, site=0, node="a", host="a", machine="a", network="n", cores=(0,)) for r in range(3)]
    with pytest.raises(FieldError, match="= 'nccl': rank 2 on a finds 2 GPUs; start fewer ranks there"):
        device_of(2, crowd, 2, "nccl")
