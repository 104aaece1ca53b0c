"""The reference check: does the pipeline compute the gradients that one process computes?

One rank runs the whole model on the microbatches of the first iteration and leaves its gradients in a safetensors file
under their global names; every rank compares its own. Stages, schedule, transport and split backward have no part in
the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from crosspipe.execute.mathematics import Batch
from crosspipe.store.files import replacing


def write_reference(
    path: Path, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], batch: Batch, microbatches: int
) -> None:
    """Gradients of the mean `loss` over the microbatches of iteration 0, by plain autograd, written to `path`."""
    device = next(model.parameters()).device
    for microbatch in range(microbatches):
        tokens, target = (x.to(device) for x in batch(0, microbatch))
        (loss(model(tokens), target) / microbatches).backward()
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    with replacing(path) as temporary:
        save_file(gradients, temporary)


def relative_error(path: Path, parameters: Iterable[tuple[str, nn.Parameter]], *, factor: float = 1.0) -> float:
    """Largest |g - r| / |r| (Euclidean norms) over the named parameters; r from `path`, g = gradient / `factor`."""
    worst = 0.0
    with safe_open(path, "pt") as file:
        for name, parameter in parameters:
            reference = file.get_tensor(name)
            gradient = torch.zeros_like(reference) if parameter.grad is None else parameter.grad.cpu() / factor
            size = float(reference.double().norm())
            difference = float((gradient.double() - reference.double()).norm())
            worst = max(worst, difference / size if size else difference)
    return worst
