"""Which GPU is a rank's own: no device is needed to tell."""

from __future__ import annotations

import msgspec
import pytest
from sessions import session_of, two_stages

from crosspipe.errors import FieldError
from crosspipe.execute.cuda_worker import check_environment, device_index, watchdog_s
from crosspipe.execute.plan import Plan
from crosspipe.solver import solve
from crosspipe.store import save


@pytest.mark.parametrize(
    ("environment", "devices", "index"),
    [
        ({"LOCAL_RANK": "3", "RANK": "7", "SLURM_LOCALID": "1"}, 4, 3),
        ({"SLURM_LOCALID": "1", "RANK": "5"}, 4, 1),
        ({"RANK": "2"}, 4, 2),  # all ranks on this machine
        ({"SLURM_LOCALID": "3"}, 1, 0),  # --gpus-per-task=1
        ({}, 1, 0),
    ],
)
def test_a_rank_takes_the_gpu_of_its_place_on_the_host(environment, devices, index):
    assert device_index(environment, devices) == index


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(FieldError, match="SLURM_LOCALID = 4: this host shows 4 GPUs; start one rank per GPU"):
        device_index({"SLURM_LOCALID": "4"}, 4)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, "NCCL_LAUNCH_ORDER_IMPLICIT = '1': a receive .*; unset it"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "CUDA_DEVICE_MAX_CONNECTIONS = '1': streams .*; export it as 32"),
    ],
)
def test_an_environment_in_which_streams_wait_for_each_other_is_refused(environment, said):
    with pytest.raises(FieldError, match=said):
        check_environment(environment)


@pytest.mark.parametrize(
    "environment", [{}, {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}]
)
def test_an_environment_in_which_they_do_not_is_fine(environment):
    check_environment(environment)


def test_nccl_waits_longer_than_the_engine_by_the_longest_iteration(tmp_path):
    """Of 3 s and 20 s: twice the time-out of 5 s, and 40 s."""
    problem = two_stages()
    session = session_of(tmp_path, {label: solve(problem, "1f1b") for label in "abc"}, problem)
    points = list(session.points)
    for number, seconds in enumerate((3, 20)):
        plan = Plan(
            schedule_name="", problem_digest="", predicted_makespan_ns=seconds * 10**9, ranks=(), wire_senders={}
        )
        points[number] = msgspec.structs.replace(points[number], plan=str(save(tmp_path / f"{seconds}.json", plan)))
    assert watchdog_s(msgspec.structs.replace(session, points=tuple(points))) == 50
    assert watchdog_s(session) == 10
