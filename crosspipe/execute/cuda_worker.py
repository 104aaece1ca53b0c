"""A rank of a session on a GPU: which device is its own, and its engine. Nothing here is imported by runs on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from crosspipe.errors import FieldError
from crosspipe.execute.clock import CommonClock
from crosspipe.execute.cuda_device import CudaDevice
from crosspipe.execute.cuda_engine import CudaEngine
from crosspipe.execute.engine import Settings
from crosspipe.execute.nccl import NcclChannels, check_nccl
from crosspipe.execute.plan import Plan
from crosspipe.execute.replication import Pipeline, one_share
from crosspipe.execute.spec import Session
from crosspipe.execute.training import Training
from crosspipe.problem import Problem
from crosspipe.store import load

LEAST_CONNECTIONS = 8  # CUDA's default


def device_index(environment: Mapping[str, str], devices: int) -> int:
    """Which of the `devices` that this process sees is its own: by LOCAL_RANK or SLURM_LOCALID; 0 where it sees one.

    Raises FieldError where there are fewer devices than ranks on the host.
    """
    if devices == 1:
        return 0  # each rank was given one (--gpus-per-task=1), or is alone
    name = next((name for name in ("LOCAL_RANK", "SLURM_LOCALID") if name in environment), None)
    if name is None:
        name, local = "RANK", int(environment.get("RANK", "0"))
    else:
        local = int(environment[name])
    if local >= devices:
        raise FieldError(name, local, f"this host shows {devices} GPUs", "start one rank per GPU")
    return local


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises FieldError for what would let streams of this rank wait for each other, where a plan says they do not."""
    if environment.get("NCCL_LAUNCH_ORDER_IMPLICIT", "0") != "0":
        name = "NCCL_LAUNCH_ORDER_IMPLICIT"
        wrong = "a receive posted ahead would hold back every later message until its own has come"
        raise FieldError(name, environment[name], wrong, "unset it")
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = environment.get(name, "")
    if value.isdigit() and int(value) < LEAST_CONNECTIONS:
        wrong = "streams would share a queue, and a receive that waits would hold up a send"
        raise FieldError(name, value, wrong, "export it as 32")


def own_device(environment: Mapping[str, str]) -> torch.device:
    """This rank's GPU, made the current one."""
    check_nccl()
    check_environment(environment)
    device = torch.device("cuda", device_index(environment, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def watchdog_s(session: Session) -> float:
    """NCCL's own time-out, twice that of the engine, which names the place and so should come first.

    It counts from the launch, and a whole iteration is launched ahead: twice the longest predicted one comes on top.
    """
    plans = [load(point.plan, Plan) for point in session.points if point.plan is not None]
    longest_ns = max((plan.predicted_makespan_ns for plan in plans), default=0)
    return 2 * (session.run.timeout_s + longest_ns / 1e9)


def build_engine(
    problem: Problem,
    plan: Plan,
    training: Training,
    pipeline: Pipeline,
    channels: NcclChannels,
    common: CommonClock,
    device: torch.device,
    *,
    wire_senders: Mapping[str, Sequence[int]],
    settings: Settings,
    at: Callable[[int, int], None],
) -> CudaEngine:
    """The engine of a point. Opens its channels and sets the device's clock. Collective."""
    session = training.session
    channels.connect({pair for rank in plan.ranks for pair in rank.channels()})
    return CudaEngine(
        one_share(problem, session.replicas),
        plan.ranks[pipeline.rank],
        stages=training.stages,
        step=training.step,
        replicas=training.step,
        transport=pipeline,
        channels=channels,
        clock=common.clock,
        device=CudaDevice(device, lambda: common.clock.now(), longest_wait_ns=round(session.run.timeout_s * 1e9)),
        message_format=session.message_format,
        batch=training.batch,
        settings=settings,
        shared_wires=[wire for wire, ranks in wire_senders.items() if len(ranks) > 1],
        at=at,
    )
