"""Problems and schedules as integer arrays: what the compiled performance model and the searchers work on.

It only translates; `crosspipe.schedule.kernel` computes. A block or a message is one integer, so that an order is an
array that compiled code can rearrange.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosspipe.errors import FieldError
from crosspipe.problem import Problem
from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.order import (
    BLOCK_KINDS,
    MAX_PIECES,
    MESSAGE_KINDS,
    Block,
    Schedule,
    columns,
    require_size,
)

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FORWARD, INPUT_GRAD, WEIGHT_GRAD, FUSED = range(4)  # block kinds F, D, W, B
GATHER, REDUCE = 2, 3  # message kinds, as in MESSAGE_KINDS; those of F and D are as the blocks'

_PIECE_BITS, _CHUNK_BITS = 12, 8  # the microbatch has the rest
_MAX_CHUNKS = 2**_CHUNK_BITS


class CompiledProblem(NamedTuple):
    """A Problem as integer arrays; times in ns, sizes in bytes.

    Block costs are indexed [kind, position] with kinds F, D, W, B; message costs [kind, sending position] with kinds
    F, D, gather, reduce. `wire` is an index into `Problem.wires`, -1 where nothing is shared; `sends` says whether that
    message exists. `zero_length` is set where an F, D or B takes no time: ties then need the heap for every message.
    """

    stages: int
    positions: int
    microbatches: int
    wires: int
    stage_of: Ints  # [position]
    position_of: Ints  # [stage, chunk]
    duration: Ints
    take: Ints
    release: Ints
    latency: Ints
    serialisation: Ints
    wire: Ints
    sends: Flags
    single_sender: Flags  # [wire]
    zero_length: bool


class EncodedSchedule(NamedTuple):
    """Orders as integers: `orders[stage, i]` are `block_code`s (the first `lengths[stage]` count), `listed[wire, i]`
    are `message_code`s (`listed_lengths[wire]` of them; -1: that wire is first come first served)."""

    orders: Ints
    lengths: Ints
    listed: Ints
    listed_lengths: Ints


@compiled
def block_code(kind: int, chunk: int, microbatch: int, piece: int = 0, pieces: int = 1) -> int:
    """A block as one integer; `kind` is FORWARD, INPUT_GRAD, WEIGHT_GRAD or FUSED. Usable inside compiled code."""
    code = (microbatch << _CHUNK_BITS) | chunk
    return (((((code << _PIECE_BITS) | piece) << _PIECE_BITS) | pieces) << 2) | kind


@compiled
def message_code(problem: CompiledProblem, kind: int, position: int, microbatch: int) -> int:
    """A message (kind index in MESSAGE_KINDS, sending position, microbatch) as one integer."""
    return (kind * problem.positions + position) * problem.microbatches + microbatch


def compile_problem(problem: Problem) -> CompiledProblem:
    """The Problem as integer arrays. Raises FieldError above 256 chunks or `order.MOST_BLOCKS` blocks."""
    require_size(problem)
    if problem.chunks > _MAX_CHUNKS:
        raise FieldError(
            "chunks", problem.chunks, "is more than the compiled model packs", f"use at most {_MAX_CHUNKS}"
        )
    positions = problem.positions
    places = [problem.place(k) for k in range(positions)]
    costs = [problem.costs[stage][chunk] for stage, chunk in places]
    wire_index = {name: i for i, name in enumerate(problem.wires)}
    latency, serialisation = np.zeros((2, 4, positions), dtype=np.int64)
    wire = np.full((4, positions), -1, dtype=np.int64)
    sends = np.zeros((4, positions), dtype=np.bool_)
    senders: list[set[int]] = [set() for _ in wire_index]
    for kind, name in enumerate(MESSAGE_KINDS):
        for position, (stage, _) in enumerate(places):
            hop = problem.message_hop(name, position)
            if hop is None:
                continue
            sends[kind, position] = True
            latency[kind, position], serialisation[kind, position] = hop.latency_ns, hop.serialisation_ns
            if hop.wire is not None:
                wire[kind, position] = wire_index[hop.wire]
                senders[wire_index[hop.wire]].add(stage if kind < GATHER else -1 - stage)
    return CompiledProblem(
        stages=problem.stages,
        positions=positions,
        microbatches=problem.microbatches,
        wires=len(wire_index),
        stage_of=np.array([stage for stage, _ in places], dtype=np.int64),
        position_of=np.array(
            [[problem.position(s, c) for c in range(problem.chunks)] for s in range(problem.stages)], dtype=np.int64
        ),
        duration=np.array([[c.duration_ns(k) for c in costs] for k in BLOCK_KINDS], dtype=np.int64),
        take=np.array([[c.take_bytes(k) for c in costs] for k in BLOCK_KINDS], dtype=np.int64),
        release=np.array([[c.release_bytes(k) for c in costs] for k in BLOCK_KINDS], dtype=np.int64),
        latency=latency,
        serialisation=serialisation,
        wire=wire,
        sends=sends,
        # gathers and reductions tie with other messages even where they share their sender
        single_sender=np.array([len(s) == 1 and min(s) >= 0 for s in senders], dtype=np.bool_),
        zero_length=any(c.duration_ns(k) == 0 for c in costs for k in "FDB"),
    )


def encode(problem: Problem, schedule: Schedule) -> EncodedSchedule:
    """The Schedule as integer arrays for `evaluate` and `run`.

    Raises FieldError where the schedule is not of this problem's shape or names blocks or messages it does not have.
    """
    schedule.check_runs_on(problem)
    width = max((len(order) for order in schedule.orders), default=0)
    orders = np.zeros((problem.stages, width), dtype=np.int64)
    for stage, order in enumerate(schedule.orders):
        orders[stage, : len(order)] = block_code.py_func(*_numbers(order))  # type: ignore[attr-defined]
    wires = [schedule.messages.get(name) for name in problem.wires]
    listed_lengths = np.array([-1 if order is None else len(order) for order in wires], dtype=np.int64)
    listed = np.zeros((len(wires), max([0, *listed_lengths])), dtype=np.int64)
    for i, messages in enumerate(wires):
        for j, (kind, position, microbatch) in enumerate(messages or ()):
            row = MESSAGE_KINDS.index(kind) * problem.positions + position
            listed[i, j] = row * problem.microbatches + microbatch
    lengths = np.array([len(order) for order in schedule.orders], dtype=np.int64)
    return EncodedSchedule(orders, lengths, listed, listed_lengths)


def _numbers(order: tuple[Block, ...]) -> Ints:
    """`columns` of an order that `check_runs_on` has passed; its numbers may be of any integral type."""
    rows = columns(order)
    if rows is not None:
        return rows
    return np.array([(BLOCK_KINDS.index(b.kind), *map(int, b[1:])) for b in order], dtype=np.int64).T


@compiled
def decode(code: int) -> tuple[int, int, int, int, int]:
    """(kind, chunk, microbatch, piece, pieces) of a `block_code`."""
    kind, code = code & 3, code >> 2
    pieces, code = code & MAX_PIECES, code >> _PIECE_BITS
    piece, code = code & MAX_PIECES, code >> _PIECE_BITS
    return kind, code & (_MAX_CHUNKS - 1), code >> _CHUNK_BITS, piece, pieces


@compiled
def decode_message(problem: CompiledProblem, code: int) -> tuple[int, int, int]:
    """(kind, sending position, microbatch) of a `message_code`."""
    row, microbatch = code // problem.microbatches, code % problem.microbatches
    return row // problem.positions, row % problem.positions, microbatch
