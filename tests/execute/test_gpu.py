"""On a real GPU: the device's clock, emulated delays, streams, and whole runs over NCCL."""

from __future__ import annotations

import time

import msgspec
import numpy as np
import pytest
import torch

from crosspipe.execute.cuda_device import CudaDevice
from crosspipe.execute.cuda_wire import ARRIVAL, HEADER, DeviceClock, delay_errors
from crosspipe.execute.session import run_session
from crosspipe.problem import Problem
from crosspipe.solver import solve

pytestmark = [pytest.mark.gpu, pytest.mark.serial]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def clock(device) -> DeviceClock:
    return DeviceClock(device, time.monotonic_ns, longest_wait_ns=10**9)


def integers(device, *size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int64, device=device)


def test_the_device_tells_the_hosts_time(clock, device):
    assert clock.error_ns < 100_000
    out = integers(device, 1)
    before = time.monotonic_ns()
    clock.stamp(out)
    torch.cuda.synchronize()
    assert before - clock.error_ns <= int(out) <= time.monotonic_ns() + clock.error_ns


def test_messages_queue_by_the_alpha_beta_rule(clock, device):
    ready, wire, header = integers(device, 1), integers(device, 1), integers(device, 3, HEADER)
    ready.fill_(1_000)
    for number in range(3):
        delay = torch.tensor([number, 50, 7], dtype=torch.int64, device=device)
        clock.depart(ready, wire, delay, header[number])
    assert header.tolist() == [[i, 1_000, 1_000 + 50 * i, 1_050 + 50 * i, 1_057 + 50 * i] for i in range(3)]


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("milliseconds", [1, 10, 100])
def test_delays_are_as_long_as_they_should_be(clock, device, milliseconds, busy):
    beside, a = torch.cuda.Stream(device), torch.randn(4096, 4096, device=device)
    if busy:
        with torch.cuda.stream(beside):
            for _ in range(200):
                a @ a
    errors = delay_errors(clock, milliseconds * 1_000_000, 20)
    assert min(errors) >= 0
    p50, p95 = np.percentile(errors, [50, 95])
    assert p50 <= 100_000
    assert p95 <= 500_000


def test_a_receive_posted_late_has_the_whole_way_to_go(clock, device):
    header = torch.tensor([0, 1_000, 2_000, 2_500, 3_000], dtype=torch.int64, device=device)
    for posted, until in ((1_500, 3_000), (2_400, 3_400)):
        arrival = integers(device, ARRIVAL)
        clock.arrive(header, torch.tensor([posted], dtype=torch.int64, device=device), arrival)
        assert arrival[2:].tolist() == [0, 1_000, 2_000, 2_500, until]


def test_the_device_can_be_set_again(clock, device):
    clock._clock[0] += 10**9
    clock.set()
    test_the_device_tells_the_hosts_time(clock, device)


def test_a_wrong_header_does_not_hang_the_device(device):
    clock = DeviceClock(device, time.monotonic_ns, longest_wait_ns=20_000_000)
    header, posted, arrival = integers(device, HEADER), integers(device, 1), integers(device, ARRIVAL)
    header[-1] = 2**62
    clock.arrive(header, posted, arrival)
    received, resumed = arrival[:2].tolist()
    assert 20_000_000 <= resumed - received < 40_000_000


def test_streams_run_beside_each_other_and_the_host_waits_for_none(device):
    gpu = CudaDevice(device, time.monotonic_ns, longest_wait_ns=10**9)
    header, posted, arrivals = integers(device, HEADER), integers(device, 1), integers(device, 2, ARRIVAL)
    header[-1] = time.monotonic_ns() + 200_000_000
    torch.cuda.synchronize()
    began = time.monotonic_ns()
    with gpu.beside("a", behind=False):
        gpu.clock.arrive(header, posted, arrivals[0])
    with gpu.beside("b", behind=False):
        gpu.clock.arrive(header, posted, arrivals[1])
    assert time.monotonic_ns() - began < 100_000_000
    gpu.synchronize()
    (first, _, *_), (second, _, *_) = arrivals.tolist()
    assert abs(first - second) < 50_000_000  # the second did not wait for the first


def session(directory, stages: int, **fields):
    from sessions import session_of

    problem = Problem.uniform(
        stages=stages,
        microbatches=4,
        sites=stages,
        forward_ms=2,
        input_grad_ms=2,
        weight_grad_ms=2,
        latency_ms=20,
        serialisation_ms=1,
    )
    made = session_of(directory, {"1f1b": solve(problem, "1f1b")}, problem, pace=None, transport="nccl", timeout_s=60.0)
    layers = ((3,),) if stages == 1 else ((2,), (1,))
    return msgspec.structs.replace(made, layers=layers, gradient_norm_ns=(), optimizer_step_ns=(), **fields)


@pytest.mark.parametrize("stages", [1, 2] if torch.cuda.device_count() > 1 else [1])
def test_a_run_over_nccl_trains_as_one_process(tmp_path, stages):
    (outcome,) = run_session(session(tmp_path, stages))
    assert outcome.failure is None, outcome.failure
    assert outcome.record.gradient_relative_error < 1e-5
    assert outcome.record.iterations[-1].loss < outcome.record.iterations[0].loss
    if stages == 2:
        assert outcome.record.delay_error_ns["p95"] <= 500_000
