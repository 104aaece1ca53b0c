"""How an iteration ends, whatever device it ran on: all ranks meet, compare what they have, and clip by one norm."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crosspipe.errors import CrosspipeError
from crosspipe.execute.priority import patiently
from crosspipe.execute.replicas import Step
from crosspipe.execute.transport import Transport


class Ending(NamedTuple):
    """When the last rank's blocks ended (ns of the common clock), this rank's mean loss (None: it has none), the norm
    of all gradients, and the factor they were clipped by."""

    blocks_end_ns: int
    loss: float | None
    gradient_norm: float
    clip_factor: float


def meet(
    transport: Transport, step: Step, index: int, end_ns: int, losses: Sequence[Tensor], clip_norm: float | None
) -> Ending:
    """Collective, after the blocks of iteration `index`, which ended at `end_ns` here. `clip_norm` None: no clipping.

    Raises CrosspipeError on all ranks where the loss or the gradients of one are not finite.
    """
    loss = float(torch.stack(list(losses)).mean()) if losses else None
    with patiently():
        square = step.square()
    rows = transport.allgather(struct.pack("<qdd", end_ns, square, loss or 0.0))
    ends, squares, means = zip(*(struct.unpack("<qdd", row) for row in rows), strict=True)
    transport.flush()  # returns at once: every message has been received
    check_finite(index, loss=means, gradient_norm=squares)
    with patiently():
        factor = 1.0 if clip_norm is None else step.clip(sum(squares), clip_norm)
    return Ending(max(ends), loss, math.sqrt(sum(squares)), factor)


def check_finite(index: int, **values: Sequence[float]) -> None:
    """CrosspipeError where some rank's value of an iteration is not a finite number; `values[what][rank]`."""
    for what, of_ranks in values.items():
        for rank, value in enumerate(of_ranks):
            if not math.isfinite(value):
                words = what.replace("_", " ")
                raise CrosspipeError(
                    f"iteration {index}: the {words} of rank {rank} is {value}; lower the learning rate"
                )
