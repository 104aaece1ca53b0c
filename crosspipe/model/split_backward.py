"""The backward pass of a stage, cut into D (gradient to the input) and W (gradients of the weights).

`SplitBackward` wraps any module of standard layers: its `nn.Linear` layers run as a custom autograd Function whose
backward computes the input gradient only and leaves (weight, input, output gradient) for W; all else (norms,
embeddings, biases, layers of other kinds) gets its gradient in D. The idea is zero-bubble pipelining's (Qi et al.,
ICLR 2024); gradients are the bits that a plain backward gives, and what D no longer needs is free when D ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from crosspipe.errors import FieldError
from crosspipe.model.decoder import token_loss
from crosspipe.model.standard import check_stage, is_deferrable


class Product(NamedTuple):
    """What W needs for one linear layer: its weight, its input (..., in) and its output's gradient (rows, out)."""

    weight: nn.Parameter
    x: Tensor
    gradient: Tensor


class Forwarded(NamedTuple):
    """What D needs: the input as a leaf (None: no input gradient), the end of the graph, the loss's gradient.

    `edge` is None where nothing needs a gradient: a first stage that is frozen. `fused`: no weight was deferred.
    """

    leaf: Tensor | None
    edge: GradientEdge | None
    loss_gradient: Tensor | None
    fused: bool


class Replay(NamedTuple):
    """What F is run again from: its input and target, and the random numbers it drew (dropout)."""

    x: Tensor
    target: Tensor | None
    fused: bool
    random: list[tuple[torch.device, Tensor]]


class SplitBackward:
    """One (stage, chunk), microbatch by microbatch: F, then D and W (in pieces), or a fused B.

    Parameters: `stage` any module from one tensor to one tensor; the forward of its `nn.Linear` layers is replaced on
    the instances, names and parameters stay. `loss(output, target)` is used where `forward` gets a target; its gradient
    is `loss_scale` (1/microbatches, to train on the mean). `needs_input_grad=False` for a first stage with real-valued
    input; integer input never needs it. With `recompute` F keeps only its input and D runs F again, with the same
    random numbers.

    Gradients are accumulated into `parameter.grad`. Weights with gradient hooks are not deferred. A module that cannot
    be a stage (`crosspipe.model.standard`) and what is called out of order (D before F, W twice) raise FieldError.
    """

    def __init__(
        self,
        stage: nn.Module,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = token_loss,
        loss_scale: float = 1.0,
        needs_input_grad: bool = True,
        recompute: bool = False,
    ) -> None:
        self.stage, self.loss, self.loss_scale = stage, loss, loss_scale
        self.needs_input_grad, self.recompute = needs_input_grad, recompute
        self._inputs: dict[int, Replay] = {}  # recompute only: between F and D
        self._forwarded: dict[int, Forwarded] = {}  # between F and D
        self._products: dict[int, dict[tuple[int, int], list[Product]]] = {}  # between D and W: (piece, pieces) -> left
        self._take: Callable[[Product], None] = accumulate
        self.deferring = True  # while F runs: whether linear layers leave their weights' gradients for W
        check_stage(stage, recompute=recompute)
        for module in stage.modules():
            if is_deferrable(module):
                module.forward = partial(_forward, module, self)

    def forward(self, mb: int, x: Tensor, target: Tensor | None = None, *, fused: bool = False) -> Tensor:
        """F: the stage's output, or the loss (unscaled) where a target is given; detached.

        `x` is kept, not copied: it must not be written to before D (or B) of this microbatch. `fused` says that B will
        follow, not D: then nothing is deferred, which a plain forward and backward do not pay for either.
        """
        if mb in self._forwarded or mb in self._inputs or mb in self._products:
            raise FieldError("microbatch", mb, "was forwarded before and is not finished", "finish its D and W first")
        if self.recompute:
            self._inputs[mb] = Replay(x, target, fused, random_state(self.stage))
            with torch.no_grad():
                return self._run(x, target)
        self._forwarded[mb], output = self._record(x, target, fused)
        return output

    def input_grad(self, mb: int, grad: Tensor | None) -> Tensor | None:
        """D: the gradient to the input, None on a first stage. `grad` is the output's; None where F gave the loss."""
        kept = self._inputs.get(mb) or self._forwarded.get(mb)
        if kept is not None and kept.fused:
            raise FieldError("microbatch", mb, "was forwarded for a fused B", "run B, or F without fused")
        products: list[Product] = []
        gradient = self._backward(mb, grad, products.append)
        self._products[mb] = {(0, 1): products}
        return gradient

    def weight_grad(self, mb: int, piece: int = 0, pieces: int = 1) -> None:
        """W, or its share `piece` of `pieces`: groups of layers of about equal work, in the order D met them."""
        left = self._products.get(mb)
        if left is None:
            raise FieldError("microbatch", mb, "has no weight gradients waiting", "run D first, and each W once")
        if pieces != 1 and (0, 1) in left:
            left.update({(i, pieces): group for i, group in enumerate(cut(left.pop((0, 1)), pieces))})
        products = left.pop((piece, pieces), None)
        if products is None:
            raise FieldError(
                "piece", f"{piece} of {pieces}", f"of microbatch {mb} is not waiting", f"pieces left: {sorted(left)}"
            )
        if not left:
            del self._products[mb]
        products.reverse()
        with torch.no_grad():  # else the sum gets a graph, which holds every output gradient
            while products:
                accumulate(products.pop())

    def backward(self, mb: int, grad: Tensor | None) -> Tensor | None:
        """B: D and W at once, each layer's W right after its D; returns what D returns."""
        return self._backward(mb, grad, accumulate)

    def in_flight(self) -> tuple[int, ...]:
        """Microbatches that hold memory: forwarded, or with weight gradients waiting."""
        return tuple(sorted({*self._inputs, *self._forwarded, *self._products}))

    def discard(self) -> None:
        """Forgets every microbatch in flight, after a failure; gradients so far stay."""
        self._inputs.clear()
        self._forwarded.clear()
        self._products.clear()

    def _run(self, x: Tensor, target: Tensor | None) -> Tensor:
        version = x._version
        output = self.stage(x)
        kind = type(self.stage).__name__
        if not isinstance(output, Tensor):
            raise FieldError("stage", kind, f"gives a {type(output).__name__}", "a stage gives one tensor")
        if x._version != version:
            raise FieldError("stage", kind, "writes into its input, which D still needs", "use inplace=False")
        return output if target is None else self.loss(output, target)

    def _record(self, x: Tensor, target: Tensor | None, fused: bool) -> tuple[Forwarded, Tensor]:
        x = x.detach()
        leaf = x.requires_grad_() if self.needs_input_grad and x.is_floating_point() else None
        self.deferring = not fused
        try:
            output = self._run(x, target)
        finally:
            self.deferring = True
        loss_gradient = None if target is None else torch.full_like(output, self.loss_scale, requires_grad=False)
        # the edge instead of the output: the graph does not need the values, and they are free once sent
        edge = get_gradient_edge(output) if output.requires_grad else None
        return Forwarded(leaf, edge, loss_gradient, fused), output.detach()

    def _backward(self, mb: int, grad: Tensor | None, take: Callable[[Product], None]) -> Tensor | None:
        if mb in self._inputs:
            x, target, fused, random = self._inputs.pop(mb)
            with torch.random.fork_rng([device for device, _ in random if device.type == "cuda"]):
                set_random_state(random)
                forwarded, _ = self._record(x, target, fused)
        elif mb in self._forwarded:
            forwarded = self._forwarded.pop(mb)
        else:
            raise FieldError("microbatch", mb, "has no forward to differentiate", "run F first, and each D or B once")
        if (grad is None) == (forwarded.loss_gradient is None):
            raise FieldError(
                "grad",
                "None" if grad is None else tuple(grad.shape),
                f"microbatch {mb} was forwarded {'without' if grad is None else 'with'} a target",
                "give the output's gradient exactly where F returned no loss",
            )
        if forwarded.edge is None:
            return None
        self._take = take
        try:
            torch.autograd.backward(forwarded.edge, forwarded.loss_gradient if grad is None else grad)
        finally:
            self._take = accumulate
        return None if forwarded.leaf is None else forwarded.leaf.grad


class DeferredLinear(torch.autograd.Function):
    """x W^T + b whose backward gives the gradients of x and b, and hands W's product to the wrapper."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, wrapper: SplitBackward) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.wrapper = wrapper
        output = functional.linear(x, weight, bias)
        # autograd lets no in-place layer (ReLU(inplace=True)) follow a Function that returns a view
        return torch.ops.aten._unsafe_view(output, output.shape) if output._is_view() else output

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        x_gradient = rows.mm(weight).view(x.shape) if ctx.needs_input_grad[0] else None
        bias_gradient = rows.sum(0) if ctx.needs_input_grad[2] else None
        if weight.requires_grad:
            # detached: with its graph, x would hold the whole stage's input until W
            ctx.wrapper._take(Product(weight, x.detach(), rows))
        return x_gradient, None, bias_gradient, None


def _forward(module: nn.Linear, wrapper: SplitBackward, x: Tensor) -> Tensor:
    if not wrapper.deferring:
        return functional.linear(x, module.weight, module.bias)
    if torch.is_autocast_enabled(x.device.type):
        raise FieldError("autocast", True, "deferred weights know one number format", "build the model in that format")
    return DeferredLinear.apply(x, module.weight, module.bias, wrapper)


def accumulate(product: Product) -> None:
    """Adds one layer's weight gradient to `weight.grad`.

    Not addmm: multiplying first and adding then is what autograd does, and gives its bits.
    """
    weight, x, gradient = product
    weight_gradient = gradient.t().mm(x.reshape(-1, x.shape[-1]))
    if weight.grad is None:
        weight.grad = weight_gradient
    else:
        weight.grad.add_(weight_gradient)


def random_state(stage: nn.Module) -> list[tuple[torch.device, Tensor]]:
    """The random generators a stage may draw from: the CPU's, and those of the devices it is on."""
    cuda = sorted({p.device for p in stage.parameters() if p.is_cuda}, key=str)
    return [(torch.device("cpu"), torch.get_rng_state()), *((d, torch.cuda.get_rng_state(d)) for d in cuda)]


def set_random_state(state: list[tuple[torch.device, Tensor]]) -> None:
    """Puts the generators back to where `random_state` found them."""
    for device, numbers in state:
        if device.type == "cuda":
            torch.cuda.set_rng_state(numbers, device)
        else:
            torch.set_rng_state(numbers)


def cut(products: list[Product], pieces: int) -> list[list[Product]]:
    """Consecutive groups of about equal multiplications; empty ones where there are fewer layers than pieces."""
    work = [product.weight.numel() * product.x.numel() // product.x.shape[-1] for product in products]
    groups: list[list[Product]] = [[] for _ in range(pieces)]
    done = 0
    for product, amount in zip(products, work, strict=True):
        groups[(2 * done + amount) * pieces // (2 * sum(work))].append(product)  # by where its middle lies
        done += amount
    return groups
