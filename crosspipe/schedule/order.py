"""The Schedule: per stage the order of its blocks, optionally per wire the order of its messages.

It holds no times; `simulate` gives those. A Certificate says how far it can still be from the optimum, a Provenance how
it was found.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem import Problem


class Block(NamedTuple):
    """One block: kind F, D, W or B, chunk, microbatch; a W may be cut in pieces (`piece` of `pieces`, 0-based)."""

    kind: str
    chunk: int
    microbatch: int
    piece: int = 0
    pieces: int = 1

    def __str__(self) -> str:
        part = "" if self.pieces == 1 else f" piece {self.piece}/{self.pieces}"
        return f"{self.kind}{self.microbatch} of chunk {self.chunk}{part}"


class Message(NamedTuple):
    """One message: `kind` F or D (what made it; a fused B sends a D), the position that sends it, the microbatch.

    With data parallelism also `reduce` and `gather`, whose `microbatch` is 0.
    """

    kind: str
    position: int
    microbatch: int


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a schedule was found; enough to find it again."""

    method: str
    parameters: dict[str, str | int | float | bool | None] = {}
    seed: int | None = None
    workers: int | None = None
    versions: dict[str, str] = {}
    wall_s: float | None = None


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is proven: no schedule of this Problem is shorter than `lower_bound_ns`; this one takes `makespan_ns`."""

    makespan_ns: int
    lower_bound_ns: int
    proven_by: str
    explanation: str
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.lower_bound_ns > self.makespan_ns:
            raise FieldError(
                "lower_bound_ns",
                self.lower_bound_ns,
                f"lies above the schedule's own makespan {self.makespan_ns}",
                f"the bound ({self.proven_by}) is wrong",
            )

    @property
    def gap(self) -> float:
        """makespan / lower bound - 1; 0 means proven optimal."""
        return self.makespan_ns / self.lower_bound_ns - 1 if self.lower_bound_ns else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the schedule is proven optimal."""
        return self.makespan_ns == self.lower_bound_ns


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="schedule"):
    """`orders[stage]` is the order of that stage's blocks; `messages[wire]` the order of a wire's messages, if listed.

    `ideal_makespan_ns` is set by `cross_ud_sub` only: the makespan its greedy plans with every block cut in pieces.
    """

    schema: int = 1
    name: str = ""
    traversal: str
    stages: int
    chunks: int
    microbatches: int
    orders: tuple[tuple[Block, ...], ...]
    messages: dict[str, tuple[Message, ...]] = {}
    problem_digest: str | None = None
    provenance: Provenance | None = None
    certificate: Certificate | None = None
    ideal_makespan_ns: int | None = None

    def __post_init__(self) -> None:
        if len(self.orders) != self.stages:
            raise FieldError("orders", f"{len(self.orders)} stages", f"stages says {self.stages}", "one order per stage")

    def check_fits(self, problem: Problem) -> None:
        """Raises FieldError where traversal or sizes differ from the Problem's, naming the right value."""
        for field in ("traversal", "stages", "chunks", "microbatches"):
            mine, theirs = getattr(self, field), getattr(problem, field)
            if mine != theirs:
                raise FieldError(f"schedule.{field}", mine, f"the problem has {theirs!r}", f"use {field} {theirs!r}")
