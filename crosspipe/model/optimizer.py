"""What follows the pipeline in an iteration: the gradients' norm, clipping, and the AdamW step.

One definition for the block profiler, which times it, and the engine, which runs it; how stages add their squares is
the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def build_optimizer(
    parameters: Iterable[nn.Parameter], *, learning_rate: float = 3e-4, weight_decay: float = 0.1
) -> torch.optim.AdamW:
    """AdamW as Llama is trained (betas 0.9 and 0.95), in its fused form."""
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True)


def square_of_gradients(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Sum of the squares of all gradients here (float32, shape ()): stages add theirs before the root is taken."""
    return get_total_norm([p.grad for p in parameters if p.grad is not None]).float().square()


def clip_gradients(parameters: Iterable[nn.Parameter], square: Tensor, largest: float) -> Tensor:
    """Scales the gradients here so that the global norm, sqrt(`square`), is at most `largest`; returns that norm."""
    norm = square.sqrt()
    clip_grads_with_norm_(parameters, largest, norm)
    return norm
