"""Duration samples of one stage's blocks, and of what follows the pipeline, on CPU or GPU.

Rounds of F, D, W, F, B on fresh microbatches; the first ones warm up and do not count. CPU: the monotonic clock
around the call. CUDA: events on the current stream, so that the time is the device's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from crosspipe.errors import FieldError
from crosspipe.model.decoder import DecoderStage
from crosspipe.model.optimizer import build_optimizer, clip_gradients, square_of_gradients
from crosspipe.model.split_backward import SplitBackward
from crosspipe.problem import Spread
from crosspipe.problem.spread import spread

WARM_UP_ROUNDS = 3
MOST_OPTIMIZER_STEPS = 20
Samples = dict[str, list[float]]
"""Durations in ns by name: F, D, W, B, or gradient_norm, optimizer_step."""


class StageData:
    """Inputs and output gradients for a stage: random tokens, or activations of about the size that norms leave."""

    def __init__(self, module: DecoderStage, seed: int) -> None:
        config, parameter = module.config, next(module.parameters())
        self.device = parameter.device
        shape = (config.microbatch_size, config.sequence)
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(config.vocabulary, shape, generator=generator).to(self.device)
        normal = torch.randn((*shape, config.hidden), generator=generator).to(self.device, parameter.dtype)
        self._x = tokens if module.first else normal
        self._target = tokens if module.last else None
        self._gradient = None if module.last else normal / config.tokens

    def received(self) -> tuple[Tensor, Tensor | None]:
        """A microbatch's input and target, newly allocated."""
        return self._x.clone(), None if self._target is None else self._target.clone()

    def gradient(self) -> Tensor | None:
        """The output's gradient, newly allocated; None where F returns the loss."""
        return None if self._gradient is None else self._gradient.clone()


def time_blocks(stage: SplitBackward, data: StageData, repetitions: int, fewest: int, budget_s: float) -> Samples:
    """F, D, W and B, each `repetitions` times or until `budget_s` is used, but at least `fewest` times."""
    samples: Samples = {"F": [], "D": [], "W": [], "B": []}
    end = time.monotonic() + budget_s
    for number in range(WARM_UP_ROUNDS + repetitions):
        if number >= WARM_UP_ROUNDS + fewest and time.monotonic() > end:
            break
        for kinds, counted in (("FDW", "FDW"), ("FB", "B")):  # the F before a fused B is another one
            (x, target), gradient = data.received(), data.gradient()
            blocks: dict[str, Callable[[], object]] = {
                "F": lambda x=x, target=target, fused="B" in kinds: stage.forward(0, x, target, fused=fused),
                "D": lambda gradient=gradient: stage.input_grad(0, gradient),
                "W": lambda: stage.weight_grad(0),
                "B": lambda gradient=gradient: stage.backward(0, gradient),
            }
            for kind in kinds:
                duration = time_call(blocks[kind], data.device)
                if number >= WARM_UP_ROUNDS and kind in counted:
                    samples[kind].append(duration)
    return samples


def time_after_pipeline(parameters: Sequence[nn.Parameter], repetitions: int) -> Samples:
    """Gradient norm with clipping, and optimizer step, on what the blocks left in `.grad`."""
    optimizer = build_optimizer(parameters)
    calls: dict[str, Callable[[], object]] = {
        "gradient_norm": lambda: clip_gradients(parameters, square_of_gradients(parameters), 1.0),
        "optimizer_step": optimizer.step,
    }
    samples: Samples = {name: [] for name in calls}
    for number in range(WARM_UP_ROUNDS + min(repetitions, MOST_OPTIMIZER_STEPS)):
        for name, call in calls.items():
            duration = time_call(call, parameters[0].device)
            if number >= WARM_UP_ROUNDS:
                samples[name].append(duration)
    return samples


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Duration of `call` in ns, as the device sees it."""
    if device.type != "cuda":
        begin = time.perf_counter_ns()
        call()
        return time.perf_counter_ns() - begin
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6


def joined(passes: Sequence[Samples]) -> Samples:
    """The samples of several passes as one."""
    return {name: [value for one in passes for value in one[name]] for name in passes[0]}


def believed(place: str, samples: Samples) -> dict[str, Spread]:
    """The spread of each block's samples, named `s2.c0.W` for place `s2.c0`.

    Raises FieldError with that name where a sample is missing, NaN or negative.
    """
    for kind, values in samples.items():
        if not values:
            raise FieldError(f"{place}.{kind}", None, "was never timed", "profile it again")
        for number, value in enumerate(values):
            if not math.isfinite(value) or value < 0:
                raise FieldError(
                    f"{place}.{kind}",
                    value,
                    f"sample {number} of {len(values)} is no duration in ns",
                    "check the clock and profile again",
                )
    return {f"{place}.{kind}": spread(values) for kind, values in samples.items()}
