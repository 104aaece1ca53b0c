"""Fused 1F1B without delays, ours and torch's own pipeline runtime, iteration by iteration in turn, in four processes.

Both run the same modules on the same batches over the same gloo group; a span goes from a start that all ranks agreed
on to the last rank's last block. Optimizer and gradient norm are left out of both.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from functools import partial
from pathlib import Path

from support.engine_bar import Asked, Group, Samples, Show
from support.engine_runs import fitting_model

from crosspipe.problem import Problem
from crosspipe.problem.architecture import ModelConfig

STAGES, MICROBATCHES = 4, 8
KEY = "fused 1F1B, no delay, ours over torch's runtime"


def torch_groups(*, quick: bool) -> list[Group]:
    """The ratio of interleaved pairs."""
    return [Group((Asked("Against torch", KEY, "ratio", 1.03, 1.0),), partial(_pairs, 3 if quick else 20))]


def _pairs(pairs: int, show: Show) -> Samples:
    config = fitting_model(((1,),) * STAGES)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="crosspipe-bench-") as folder:
        results = context.SimpleQueue()
        ranks = [
            context.Process(target=_rank, args=(r, pairs, config, folder, results), daemon=True) for r in range(STAGES)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            if rank.exitcode:
                raise RuntimeError(f"a process of the comparison ended with {rank.exitcode}")
        return {KEY: results.get()}


def _rank(rank: int, pairs: int, config: ModelConfig, folder: str, results) -> None:
    import struct

    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

    from crosspipe.execute.clock import Clock, Starts
    from crosspipe.execute.engine import Engine, Settings
    from crosspipe.execute.gloo import GlooTransport, use_loopback
    from crosspipe.execute.lowering import lower
    from crosspipe.execute.plan import Format
    from crosspipe.execute.replicas import PlainStep
    from crosspipe.model import SplitBackward, build_stage, token_loss
    from crosspipe.solver import solve

    use_loopback()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)
    transport = GlooTransport(rank, STAGES, rendezvous=f"file://{Path(folder, 'meet')}", timeout_s=120)
    clock, layers = Clock(), ((1,),) * STAGES
    problem = Problem.uniform(stages=STAGES, microbatches=MICROBATCHES, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    schedule = solve(problem, "1f1b")
    shape = (config.microbatch_size, config.sequence, config.hidden)
    size = 4 * shape[0] * shape[1] * shape[2]
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (
        torch.randint(0, 256, (MICROBATCHES * shape[0], shape[1]), generator=generator) for _ in range(2)
    )
    chunks = list(zip(tokens.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True))

    ours = build_stage(config, layers, rank, seed=0)
    engine = Engine(
        problem,
        lower(problem, schedule, message_bytes=size).ranks[rank],
        stages=[SplitBackward(ours, loss_scale=1 / MICROBATCHES)],
        step=PlainStep(torch.optim.SGD(ours.parameters(), lr=0.0)),
        transport=transport,
        clock=clock,
        wires={},
        message_format=Format(shape, "float32", size),
        batch=lambda iteration, microbatch: chunks[microbatch],
        settings=Settings(paced=False, emulate=False),
    )

    theirs = build_stage(config, layers, rank, seed=0)
    inputs = chunks[0][0] if rank == 0 else torch.zeros(shape, requires_grad=True)
    outputs = theirs(inputs).detach().requires_grad_()  # shapes only, and that gradients come back
    stage = PipelineStage(theirs, rank, STAGES, torch.device("cpu"), input_args=(inputs,), output_args=(outputs,))
    runtime = _PipelineScheduleRuntime([stage], MICROBATCHES, loss_fn=token_loss)
    kinds = {"F": _ComputationType.FORWARD, "B": _ComputationType.FULL_BACKWARD}
    runtime._prepare_schedule_with_comms(
        {
            stage: [_Action(stage, kinds[block.kind], block.microbatch) for block in order]
            for stage, order in enumerate(schedule.orders)
        }
    )

    starts = Starts(transport)

    def their_span() -> int:
        theirs.zero_grad(set_to_none=True)
        begin = starts.agree(clock)
        clock.wait_until(begin)
        runtime.step(*([tokens] if rank == 0 else []), target=targets if rank == STAGES - 1 else None, losses=[])
        ends = transport.allgather(struct.pack("<q", clock.now()))
        return max(struct.unpack("<q", end)[0] for end in ends) - begin

    def our_span(index: int) -> int:
        trace = engine.iterate(index)
        return trace.blocks_end_ns - trace.begin_ns

    ratios = []
    for index in range(pairs + 2):
        spans = {}
        for who in ("ours", "theirs") if index % 2 else ("theirs", "ours"):
            spans[who] = our_span(index) if who == "ours" else their_span()
        if index >= 2:
            ratios.append(spans["ours"] / spans["theirs"])
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)
    if rank == 0:
        results.put(ratios)
    transport.allgather(b"")
    transport.close()
