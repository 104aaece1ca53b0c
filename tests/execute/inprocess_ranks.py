"""Runs all ranks of a plan as threads of this process: for tests only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from crosspipe.execute.clock import Clock
from crosspipe.execute.emulation import OwnWire, Wire
from crosspipe.execute.engine import Engine, Settings
from crosspipe.execute.inprocess import Hub, InProcessTransport
from crosspipe.execute.loop import Before, run_iterations
from crosspipe.execute.plan import Format, Plan
from crosspipe.execute.replicas import PlainStep, Replicas, Step
from crosspipe.execute.trace import Trace
from crosspipe.model import SplitBackward
from crosspipe.problem import Problem

WIDTH, ROWS = 16, 4


def format_of(dtype: str) -> Format:
    return Format((ROWS, WIDTH), dtype, ROWS * WIDTH * getattr(torch, dtype).itemsize)


FORMAT = format_of("float32")


def module_at(position: int, dtype: str = "float32") -> nn.Sequential:
    """A small stage that depends on nothing but its position."""
    generator = torch.Generator().manual_seed(position)
    module = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return module.to(getattr(torch, dtype))


def batch(iteration: int, microbatch: int, dtype: str = "float32") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * iteration + microbatch)
    x, target = (torch.randn(ROWS, WIDTH, generator=generator).to(getattr(torch, dtype)) for _ in range(2))
    return x, target


def run_ranks(hub: Hub, body: Callable[[InProcessTransport], object]) -> list[object]:
    """`body(transport)` on every rank at once; the first error of any rank is raised."""
    results: list[object] = [None] * hub.size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(InProcessTransport(hub, rank))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)
            hub.lose(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(hub.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def execute(
    problem: Problem,
    plan: Plan,
    settings: Settings,
    *,
    iterations: int = 1,
    rate: float = 0.0,
    step: Callable[[list[nn.Parameter]], Step] | None = None,
    replicas: Callable[[int], Replicas] = lambda rank: None,
    before: Callable[[Engine], Before] | None = None,
    dtype: str = "float32",
) -> tuple[list[list[Trace]], dict[int, nn.Module]]:
    """Traces `[iteration][rank]` and the modules by position, after SGD with `rate` (or what `step` makes)."""
    hub = Hub(problem.stages)
    modules = {position: module_at(position, dtype) for position in range(problem.positions)}
    wires: dict[str, Wire] = {wire: OwnWire() for wire in problem.wires}

    def body(transport: InProcessTransport) -> list[Trace]:
        positions = [problem.position(transport.rank, chunk) for chunk in range(problem.chunks)]
        parameters = [p for position in positions for p in modules[position].parameters()]
        engine = Engine(
            problem,
            plan.ranks[transport.rank],
            stages=[
                SplitBackward(
                    modules[p],
                    loss=nn.functional.mse_loss,
                    loss_scale=1 / problem.microbatches,
                    needs_input_grad=p > 0,
                )
                for p in positions
            ],
            step=PlainStep(torch.optim.SGD(parameters, lr=rate)) if step is None else step(parameters),
            transport=transport,
            clock=Clock(),
            wires=wires,
            message_format=format_of(dtype),
            batch=partial(batch, dtype=dtype),
            settings=settings,
            replicas=replicas(transport.rank),
        )
        traces: list[Trace] = []
        before_each = [] if before is None else [before(engine)]
        run_iterations(engine, range(iterations), before=before_each, after=[traces.append])
        return traces

    traces = run_ranks(hub, body)
    return [[rows[i] for rows in traces] for i in range(iterations)], modules  # type: ignore[index]
