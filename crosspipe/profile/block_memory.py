"""What a microbatch holds on a stage after F and after D, exactly, and what each block needs for itself besides.

Held memory is what the schedule's memory model counts: from F's end to D's end, from D's end to W's end. Workspace is
what a block needs only while it runs; a stage runs one block at a time, so the most that any block needs comes once on
top of what is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from crosspipe.errors import FieldError
from crosspipe.model.memory import AllocatorStatistics, StorageTracker
from crosspipe.model.split_backward import SplitBackward


class BlockMemory(NamedTuple):
    """Bytes of one microbatch on one (stage, chunk)."""

    after_forward: int
    after_input_grad: int
    workspace: int
    forward_message: int  # 0 where F returns the loss
    backward_message: int  # 0 where D returns nothing

    @property
    def input_grad_take(self) -> int:
        """What D takes: the output gradients kept for W, as far as they outweigh what D frees."""
        return max(0, self.after_input_grad - self.after_forward)

    @property
    def input_grad_release(self) -> int:
        return max(0, self.after_forward - self.after_input_grad)

    def fields(self) -> dict[str, int]:
        """The byte fields of a `BlockCost`."""
        return {
            "forward_keep_bytes": self.after_forward,
            "input_grad_take_bytes": self.input_grad_take,
            "input_grad_release_bytes": self.input_grad_release,
            "weight_grad_release_bytes": self.after_input_grad,
            "forward_message_bytes": self.forward_message,
            "backward_message_bytes": self.backward_message,
        }


def block_memory(
    name: str,
    stage: SplitBackward,
    tracker: StorageTracker | AllocatorStatistics,
    make_input: Callable[[], tuple[Tensor, Tensor | None]],
    make_gradient: Callable[[], Tensor | None],
) -> BlockMemory:
    """Runs F, D, W and F, B once under `tracker`; the stage must have run before, so that its gradients exist.

    `make_input` returns a new (input, target), `make_gradient` a new output gradient: a stage holds what it received.
    Raises FieldError naming the block (`s1.c0`) if a microbatch leaves something behind.
    """

    def forward(*, fused: bool = False) -> int:
        x, target = make_input()
        output = stage.forward(0, x, target, fused=fused)
        return output.nbytes if target is None else 0

    def backward(step: Callable[[int, Tensor | None], Tensor | None]) -> int:
        gradient = step(0, make_gradient())
        return 0 if gradient is None else gradient.nbytes

    workspace = 0

    def after(counted: int) -> int:
        """Bytes held now; what was used besides the `counted` ones (or those held) goes to the workspace."""
        nonlocal workspace
        held = tracker.live_bytes
        workspace = max(workspace, tracker.peak_bytes - max(counted, held))
        tracker.reset_peak()
        return held

    with tracker:
        forward_message = forward()
        after_forward = after(0)
        backward_message = backward(stage.input_grad)
        after_input_grad = after(after_forward)
        stage.weight_grad(0)
        left = after(after_input_grad)
        forward(fused=True)
        after(0)
        backward(stage.backward)
        left = max(left, after(max(after_forward, after_input_grad)))
    if left:
        raise FieldError(
            name,
            left,
            "bytes are still held when a microbatch is done",
            "let the module keep no reference to activations",
        )
    return BlockMemory(after_forward, after_input_grad, workspace, forward_message, backward_message)
