"""The Schedule: per stage the order of its blocks, optionally per wire the order of its messages.

It holds no times; `simulate` gives those. A Certificate says how far it can still be from the optimum, a Provenance how
it was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosspipe.errors import FieldError
from crosspipe.problem import Problem

BLOCK_KINDS = ("F", "D", "W", "B")
MESSAGE_KINDS = ("F", "D", "gather", "reduce")
MAX_PIECES = 4095  # of one W; the compiled model packs it in 12 bits
MOST_BLOCKS = 1_000_000  # of a problem; 128 stages with 2600 microbatches have as many, in a GB of memory


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

    def __str__(self) -> str:
        if self.kind in ("reduce", "gather"):
            return f"{self.kind} of position {self.position}"
        return f"message {self.kind}{self.microbatch} from position {self.position}"


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

    def __str__(self) -> str:
        end = "proven optimal" if self.optimal else f"at most {self.gap:.2%} above the optimum"
        return f"{self.makespan_ns / 1e6:.3f} ms, {end} ({self.proven_by}): {self.explanation}"

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
            raise FieldError(
                "orders", f"{len(self.orders)} stages", f"stages says {self.stages}", "one order per stage"
            )

    def check_fits(self, problem: Problem) -> None:
        """Raises FieldError where traversal or sizes differ from the Problem's, naming the right value."""
        for field in ("traversal", "stages", "chunks", "microbatches"):
            mine, theirs = getattr(self, field), getattr(problem, field)
            if mine != theirs:
                raise FieldError(f"schedule.{field}", mine, f"the problem has {theirs!r}", f"use {field} {theirs!r}")

    def check_runs_on(self, problem: Problem) -> None:
        """Raises FieldError unless it fits the Problem and names each of its blocks and messages at most once.

        This is what timing an order needs. Whether every block is there, in a good order and within memory is for
        `crosspipe.schedule.check`.
        """
        self.check_fits(problem)
        require_size(problem)
        for where, wrong in [*block_faults(problem, self.orders), *message_faults(problem, self.messages)]:
            raise FieldError(where, wrong.what, wrong.why, wrong.remedy)


def require_size(problem: Problem) -> None:
    """Raises FieldError, naming the largest count that goes, if there are more than `MOST_BLOCKS` blocks or a W has
    more than `MAX_PIECES` pieces."""
    n, pieces, positions = problem.microbatches, problem.weight_grad_pieces, problem.positions
    if pieces > MAX_PIECES:
        raise FieldError("weight_grad_pieces", pieces, "are more pieces than a W has", f"use at most {MAX_PIECES}")
    blocks = positions * n * (2 + pieces)
    if blocks <= MOST_BLOCKS:
        return
    field, value, most = "stages", problem.stages, MOST_BLOCKS // (3 * problem.chunks)
    if 3 * positions * n <= MOST_BLOCKS:
        field, value, most = "weight_grad_pieces", pieces, MOST_BLOCKS // (positions * n) - 2
    elif 3 * positions <= MOST_BLOCKS:
        field, value, most = "microbatches", n, max(1, MOST_BLOCKS // (positions * (2 + pieces)))
    wrong = f"makes {blocks} blocks, more than the {MOST_BLOCKS} that are scheduled"
    raise FieldError(field, value, wrong, f"use at most {most}")


class Fault(NamedTuple):
    """What stands in an order that the Problem does not have: the entry in words, why it is wrong, what is right."""

    what: str
    why: str
    remedy: str


def block_faults(problem: Problem, orders: tuple[tuple[Block, ...], ...]) -> Iterator[tuple[str, Fault]]:
    """Blocks that do not exist, or stand twice (D and B of one microbatch do the same work): (dotted field, Fault)."""
    for stage, order in enumerate(orders):
        if _faultless(problem, order):
            continue
        seen: set[tuple[str | int, ...]] = set()
        for i, block in enumerate(order):
            kind, chunk, microbatch, piece, pieces = block
            where = f"orders[{stage}][{i}]"
            plain = type(chunk) is type(microbatch) is type(piece) is type(pieces) is int  # asking Integral is slow
            if not plain and not all(isinstance(number, Integral) for number in block[1:]):
                yield (
                    where,
                    Fault(str(block), "a field is not a whole number", "count chunks, microbatches, pieces from 0"),
                )
            elif kind not in BLOCK_KINDS:
                yield where, Fault(str(block), f"there is no block of kind {kind!r}", "use F, D, W or B")
            elif not 0 <= chunk < problem.chunks:
                yield where, Fault(str(block), f"there is no chunk {chunk}", f"use 0 to {problem.chunks - 1}")
            elif not 0 <= microbatch < problem.microbatches:
                last = problem.microbatches - 1
                yield where, Fault(str(block), f"there is no microbatch {microbatch}", f"use 0 to {last}")
            elif not 0 <= piece < pieces <= MAX_PIECES or (kind != "W" and pieces != 1):
                yield where, Fault(str(block), f"is piece {piece} of {pieces}", "only W is cut, pieces count from 0")
            else:
                work = (
                    ("W", chunk, microbatch, piece)
                    if kind == "W"
                    else ("D" if kind == "B" else kind, chunk, microbatch)
                )
                if work in seen:
                    yield where, Fault(str(block), "the order has this work before", "list each block once")
                seen.add(work)


def columns(order: tuple[Block, ...]) -> NDArray[np.int64] | None:
    """Kind (index in BLOCK_KINDS), chunk, microbatch, piece, pieces of a stage's blocks, a row each; None where they
    are not all known kinds and plain integers."""
    if not order:
        return np.empty((5, 0), dtype=np.int64)
    kinds, *numbers = zip(*order, strict=True)
    plain = all(set(map(type, column)) == {int} for column in numbers)
    if not plain or not set(kinds) <= set(BLOCK_KINDS):
        return None
    try:
        return np.array([list(map(BLOCK_KINDS.index, kinds)), *numbers], dtype=np.int64)
    except OverflowError:
        return None


def _faultless(problem: Problem, order: tuple[Block, ...]) -> bool:
    """Whether `block_faults` would find nothing on a stage, for all of it at once; False also where it cannot tell."""
    rows = columns(order)
    if rows is None:
        return False
    kind, chunk, microbatch, piece, pieces = rows
    weight_grad = kind == BLOCK_KINDS.index("W")
    known = (chunk >= 0) & (chunk < problem.chunks) & (microbatch >= 0) & (microbatch < problem.microbatches)
    cut = (piece >= 0) & (piece < pieces) & (pieces <= MAX_PIECES) & (weight_grad | (pieces == 1))
    if not (known & cut).all():
        return False
    work = np.where(kind == BLOCK_KINDS.index("B"), BLOCK_KINDS.index("D"), kind)
    same = ((work * problem.chunks + chunk) * problem.microbatches + microbatch) * (MAX_PIECES + 1) + piece
    return len(np.unique(same)) == len(same)


def message_faults(problem: Problem, messages: dict[str, tuple[Message, ...]]) -> Iterator[tuple[str, Fault]]:
    """Listed messages that do not travel on that wire, or stand twice: (dotted field, Fault)."""
    for wire, order in messages.items():
        seen: set[Message] = set()
        if wire not in problem.wires:
            known = ", ".join(problem.wires) or "none"
            yield f"messages[{wire!r}]", Fault(f"{len(order)} messages", "there is no such wire", f"wires: {known}")
            continue
        for i, message in enumerate(order):
            where = f"messages[{wire!r}][{i}]"
            kind, position, microbatch = message
            count = problem.microbatches if kind in ("F", "D") else 1
            hop = None
            if all(isinstance(number, Integral) for number in message[1:]) and 0 <= position < problem.positions:
                hop = problem.message_hop(kind, position)
            if kind not in MESSAGE_KINDS or hop is None or hop.wire != wire or not 0 <= microbatch < count:
                yield (
                    where,
                    Fault(str(message), "no such message travels on this wire", "list only this wire's messages"),
                )
            elif message in seen:
                yield where, Fault(str(message), "the wire's order has it before", "list each message once")
            seen.add(message)
