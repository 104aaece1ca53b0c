"""How much memory a stage's activations really take under its plan: its own order once, alone, with every byte tracked.

No messages travel and nothing is timed; what F keeps, what D frees and what W frees does not depend on the numbers. It
is the measured counterpart of the Problem's accounting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from crosspipe.execute.mathematics import Batch, Stage, fused_in
from crosspipe.execute.plan import Format, RankPlan
from crosspipe.model.memory import memory_tracker
from crosspipe.problem import Problem


def peak_activation_bytes(
    problem: Problem, plan: RankPlan, stages: Sequence[Stage], message_format: Format, batch: Batch
) -> int:
    """Most bytes held between two blocks of `plan`, gradients of parameters and messages on their way not counted.

    The input of a stage counts from its F on. Leaves the gradients of all parameters unset.
    """
    parameters = [p for stage in stages for p in stage.stage.parameters()]
    dtype, device = getattr(torch, message_format.dtype), parameters[0].device
    peak = 0
    tracker, fused = memory_tracker(device), fused_in(plan)
    with tracker:
        for block in (action.block for action in plan.actions if action.block is not None):
            kind, chunk, microbatch, piece, pieces = block
            stage, position = stages[chunk], problem.position(plan.rank, chunk)
            last = position == problem.positions - 1
            if kind == "W":
                stage.weight_grad(microbatch, piece, pieces)
            elif kind == "F":
                tokens, target = (x.to(device) for x in batch(0, microbatch))
                x = tokens if position == 0 else torch.zeros(message_format.shape, dtype=dtype, device=device)
                stage.forward(microbatch, x, target if last else None, fused=(chunk, microbatch) in fused)
                del x, tokens, target
            else:
                gradient = None if last else torch.zeros(message_format.shape, dtype=dtype, device=device)
                (stage.input_grad if kind == "D" else stage.backward)(microbatch, gradient)
                del gradient
            held = tracker.live_bytes - sum(p.grad.nbytes for p in parameters if p.grad is not None)
            peak = max(peak, held)
    for parameter in parameters:
        parameter.grad = None
    return peak
