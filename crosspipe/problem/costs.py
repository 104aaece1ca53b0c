"""What a block costs: durations, memory taken and released, bytes sent, per (stage, chunk).

`BlockCost` is one (stage, chunk); `BlockCosts` is the whole model as profiled or computed, with what follows the
pipeline (gradient norm, optimizer step). Memory follows the pebbling of the CrossPipe paper (Chen et al., ATC'25), with
one more term for activations that D recomputes.
"""

from __future__ import annotations

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem.findings import Finding
from crosspipe.problem.spread import Spread


class BlockCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost of F, D and W of one microbatch on one (stage, chunk). Times in ns, sizes in bytes, all integers >= 0.

    Memory: F takes `forward_keep_bytes` at its start; D takes `input_grad_take_bytes` at its start and releases
    `input_grad_release_bytes` at its end; W releases `weight_grad_release_bytes` at its end. What is taken equals what
    is released, else FieldError. A fused B does what D and W do: takes at its start, releases both at its end.
    """

    forward_ns: int
    input_grad_ns: int
    weight_grad_ns: int
    fused_backward_ns: int | None = None  # B; None: input_grad_ns + weight_grad_ns
    forward_keep_bytes: int
    input_grad_take_bytes: int = 0
    input_grad_release_bytes: int
    weight_grad_release_bytes: int
    forward_message_bytes: int = 0
    backward_message_bytes: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name == "fused_backward_ns":
                continue
            check_whole(name, value, "durations are ns, sizes are bytes")
        taken = self.forward_keep_bytes + self.input_grad_take_bytes
        released = self.input_grad_release_bytes + self.weight_grad_release_bytes
        if taken != released:
            raise FieldError(
                "forward_keep_bytes",
                self.forward_keep_bytes,
                f"a microbatch takes {taken} bytes but releases {released}",
                "keep + input_grad_take must equal input_grad_release + weight_grad_release",
            )

    @property
    def backward_ns(self) -> int:
        """Duration of a fused B in ns."""
        return self.input_grad_ns + self.weight_grad_ns if self.fused_backward_ns is None else self.fused_backward_ns

    def duration_ns(self, kind: str, piece: int = 0, pieces: int = 1) -> int:
        """Duration in ns of a block of `kind` F, D, W or B; a W in pieces gives its remainder to piece 0."""
        if kind == "F":
            return self.forward_ns
        if kind == "D":
            return self.input_grad_ns
        if kind == "B":
            return self.backward_ns
        return split(self.weight_grad_ns, piece, pieces)

    def take_bytes(self, kind: str) -> int:
        """Bytes taken at the start of a block of `kind`."""
        return {"F": self.forward_keep_bytes, "W": 0}.get(kind, self.input_grad_take_bytes)

    def release_bytes(self, kind: str, piece: int = 0, pieces: int = 1) -> int:
        """Bytes released at the end of a block of `kind`."""
        if kind == "F":
            return 0
        if kind == "D":
            return self.input_grad_release_bytes
        if kind == "B":
            return self.input_grad_release_bytes + self.weight_grad_release_bytes
        return split(self.weight_grad_release_bytes, piece, pieces)

    def scaled(self, factor: float) -> BlockCost:
        """The same block with every duration times `factor` (pacing), rounded to ns; memory and bytes unchanged."""
        fused = None if self.fused_backward_ns is None else round(self.fused_backward_ns * factor)
        return msgspec.structs.replace(
            self,
            forward_ns=round(self.forward_ns * factor),
            input_grad_ns=round(self.input_grad_ns * factor),
            weight_grad_ns=round(self.weight_grad_ns * factor),
            fused_backward_ns=fused,
        )

    def recomputed(self, stage_input_bytes: int) -> BlockCost:
        """Layer-wise recomputation: keep only the stage's input, D takes the rest again and is longer by one F."""
        keep = min(stage_input_bytes, self.forward_keep_bytes)
        fused = None if self.fused_backward_ns is None else self.fused_backward_ns + self.forward_ns
        return msgspec.structs.replace(
            self,
            input_grad_ns=self.input_grad_ns + self.forward_ns,
            fused_backward_ns=fused,
            forward_keep_bytes=keep,
            input_grad_take_bytes=self.input_grad_take_bytes + self.forward_keep_bytes - keep,
        )


def check_whole(field: str, value: object, remedy: str) -> None:
    """FieldError unless `value` is a whole number from 0 to 2**53 (104 days in ns, 9 PB): sums stay within 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FieldError(field, value, "is not a whole number >= 0", remedy)
    if value > 2**53:
        raise FieldError(field, value, "is more than 2**53", remedy)


def split(total: int, piece: int, pieces: int) -> int:
    """Share of `piece` (0-based) when `total` is cut into `pieces`; the remainder goes to piece 0."""
    share, rest = divmod(total, pieces)
    return share + rest if piece == 0 else share


class Kernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator's part in F, D and W of a microbatch: calls, own time, share of all; FLOPs where counted."""

    operator: str
    calls: int
    time_ns: int
    share: float
    flops: int | None = None

    @property
    def flops_per_s(self) -> float | None:
        """Achieved rate; None where no FLOPs are counted or no time was seen."""
        return None if self.flops is None or self.time_ns == 0 else self.flops * 1e9 / self.time_ns


class BlockCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="block_costs"):
    """The model's blocks as measured (or computed), `blocks[stage][chunk]`, and what follows the pipeline.

    `origin` says where the numbers come from: "measured", "estimated", "analytic" or "given". `spreads` maps a name
    such as `s0.c0.F` to its `Spread` in ns, `kernels` a place such as `s0.c0` to its operators; both are empty where
    nothing was measured.
    """

    schema: int = 1
    traversal: str = "ud"
    blocks: tuple[tuple[BlockCost, ...], ...]
    gradient_norm_ns: tuple[int, ...] = ()  # per stage
    optimizer_step_ns: tuple[int, ...] = ()  # per stage
    parameter_bytes: tuple[int, ...] = ()  # per stage
    workspace_bytes: tuple[tuple[int, ...], ...] = ()  # per (stage, chunk): what a block needs while it runs, besides
    layers: tuple[tuple[int, ...], ...] = ()  # decoder layers per (stage, chunk)
    origin: str = "given"
    spreads: dict[str, Spread] = {}
    kernels: dict[str, tuple[Kernel, ...]] = {}
    findings: tuple[Finding, ...] = ()
    environment: dict[str, str] = {}

    @property
    def stages(self) -> int:
        return len(self.blocks)

    @property
    def chunks(self) -> int:
        return len(self.blocks[0])

    def forward_reference_ns(self) -> int:
        """T_F: the largest forward time per microbatch of any stage, summed over its chunks, in ns."""
        return max(sum(cost.forward_ns for cost in stage) for stage in self.blocks)
