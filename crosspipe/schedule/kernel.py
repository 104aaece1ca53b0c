"""The performance model, compiled: integer arrays in, makespan (and every start and end, if wanted) out.

It computes what `crosspipe.schedule.reference` defines, at tens of millions of blocks a second, and is what searchers
call. A worklist over stages is enough where every wire has one sender or a listed order; wires with several senders
are served from a heap in ready order, once nothing else can move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosspipe.errors import FieldError
from crosspipe.problem import Problem
from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.order import BLOCK_KINDS, MAX_PIECES, MESSAGE_KINDS, Schedule

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FORWARD, INPUT_GRAD, WEIGHT_GRAD, FUSED = range(4)  # block kinds F, D, W, B
GATHER, REDUCE = 2, 3  # message kinds, as in MESSAGE_KINDS; those of F and D are as the blocks'
NEVER = 2**62  # a cutoff that never cuts
DEADLOCKED = -1

_PIECE_BITS, _CHUNK_BITS, _MICROBATCH_BITS = 12, 8, 24
_MAX_CHUNKS, _MAX_MICROBATCHES = 2**_CHUNK_BITS, 2**_MICROBATCH_BITS


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


class Times(NamedTuple):
    """All that happens, in ns: `start`, `end` [stage, i]; `message` [kind, sending position, microbatch, 4] with
    ready, start of service, end of service, arrival (-1 where not sent); `done[stage]` blocks; `peak[stage]` bytes."""

    start: Ints
    end: Ints
    message: Ints
    done: Ints
    peak: Ints


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
    """The Problem as integer arrays. Raises FieldError above 256 chunks or 2**24 microbatches."""
    for field, value, most in (
        ("chunks", problem.chunks, _MAX_CHUNKS),
        ("microbatches", problem.microbatches, _MAX_MICROBATCHES),
    ):
        if value > most:
            raise FieldError(field, value, "is more than the compiled model packs", f"use at most {most}")
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
    code = block_code.py_func  # type: ignore[attr-defined]
    for stage, order in enumerate(schedule.orders):
        orders[stage, : len(order)] = [
            code(BLOCK_KINDS.index(b.kind), b.chunk, b.microbatch, b.piece, b.pieces) for b in order
        ]
    wires = [schedule.messages.get(name) for name in problem.wires]
    listed_lengths = np.array([-1 if order is None else len(order) for order in wires], dtype=np.int64)
    listed = np.zeros((len(wires), max([0, *listed_lengths])), dtype=np.int64)
    for i, messages in enumerate(wires):
        for j, (kind, position, microbatch) in enumerate(messages or ()):
            row = MESSAGE_KINDS.index(kind) * problem.positions + position
            listed[i, j] = row * problem.microbatches + microbatch
    lengths = np.array([len(order) for order in schedule.orders], dtype=np.int64)
    return EncodedSchedule(orders, lengths, listed, listed_lengths)


@compiled
def evaluate(problem: CompiledProblem, encoded: EncodedSchedule, cutoff: int = NEVER) -> tuple[int, Ints]:
    """(makespan in ns, peak bytes per stage); makespan is DEADLOCKED (-1) where the orders cannot finish.

    Stops as soon as the makespan must exceed `cutoff` ns; what it returns then is above `cutoff`, but no makespan, and
    the peaks are those so far. Callable from Python and from compiled code; orders are not checked (see `encode`).
    """
    none = np.empty((0, 0), dtype=np.int64)
    done = np.zeros(problem.stages, dtype=np.int64)
    peak = np.zeros(problem.stages, dtype=np.int64)
    times = Times(none, none, np.empty((0, 0, 0, 0), dtype=np.int64), done, peak)
    return _run(problem, encoded, int(cutoff), times), peak


def run(problem: CompiledProblem, encoded: EncodedSchedule) -> tuple[int, Times]:
    """(makespan in ns or DEADLOCKED, the Times of every block and message)."""
    shape = encoded.orders.shape
    times = Times(
        start=np.full(shape, -1, dtype=np.int64),
        end=np.full(shape, -1, dtype=np.int64),
        message=np.full((4, problem.positions, problem.microbatches, 4), -1, dtype=np.int64),
        done=np.zeros(problem.stages, dtype=np.int64),
        peak=np.zeros(problem.stages, dtype=np.int64),
    )
    return _run(problem, encoded, NEVER, times), times


@compiled
def _run(problem: CompiledProblem, encoded: EncodedSchedule, cutoff: int, times: Times) -> int:
    stages, positions, microbatches = problem.stages, problem.positions, problem.microbatches
    orders, lengths = encoded.orders, encoded.lengths
    listed, listed_lengths = encoded.listed, encoded.listed_lengths
    record = times.start.size > 0
    done, peak = times.done, times.peak

    ran = np.zeros((2, positions, microbatches), dtype=np.bool_)  # F; D or B
    arrived = np.full((2, positions, microbatches), -1, dtype=np.int64)  # at the receiving position
    gathered = np.zeros(positions, dtype=np.int64)
    free = np.zeros(stages, dtype=np.int64)
    held = np.zeros(stages, dtype=np.int64)
    work = np.zeros(stages, dtype=np.int64)  # left to do
    weight_grads = np.zeros(positions, dtype=np.int64)  # blocks left before the reduction
    for stage in range(stages):
        for i in range(lengths[stage]):
            kind, chunk, _, piece, pieces = _decode(orders[stage, i])
            position = problem.position_of[stage, chunk]
            work[stage] += _share(problem.duration[kind, position], piece, pieces)
            weight_grads[position] += kind >= WEIGHT_GRAD

    wire_free = np.zeros(problem.wires, dtype=np.int64)
    served = np.zeros(problem.wires, dtype=np.int64)  # how far each listed wire has come
    pending = 0  # messages ready on listed wires, not yet served
    any_listed = False
    for wire in range(problem.wires):
        any_listed = any_listed or listed_lengths[wire] >= 0
    ready_at = np.full(4 * positions * microbatches if any_listed else 0, -1, dtype=np.int64)

    todo = np.empty(stages, dtype=np.int64)  # stack of the stages that may advance
    for stage in range(stages):
        todo[stage] = stages - 1 - stage
    queued = np.ones(stages, dtype=np.bool_)
    top = stages
    heap = np.empty((16, 2), dtype=np.int64)  # (ready, tie-break) of messages to be served in ready order
    heaped = 0
    outbox = np.empty((positions + 2, 2), dtype=np.int64)  # (ready, code) just sent
    out = 0
    for position in range(positions):
        if problem.sends[GATHER, position]:
            gathered[position] = -1
            outbox[out, 0], outbox[out, 1] = 0, message_code(problem, GATHER, position, 0)
            out += 1

    makespan = 0
    while True:
        if out > 0:
            out -= 1
            ready, code = outbox[out, 0], outbox[out, 1]
            kind, position, microbatch = _decode_message(problem, code)
            wire = problem.wire[kind, position]
            in_turn = wire < 0 or problem.single_sender[wire] or listed_lengths[wire] >= 0
            if problem.zero_length or not in_turn:
                if heaped == len(heap):
                    heap = _grown(heap)
                tie = ((microbatch * 2 + (kind == FORWARD)) * positions + position) * 4 + kind
                _push(heap, int(heaped), ready, tie)
                heaped += 1
                continue
        elif top > 0:
            stage = todo[top - 1]
            start = -1
            if done[stage] < lengths[stage]:
                kind, chunk, microbatch, piece, pieces = _decode(orders[stage, done[stage]])
                position = problem.position_of[stage, chunk]
                if kind == FORWARD:
                    start = 0 if position == 0 else arrived[FORWARD, position, microbatch]
                    if start >= 0:
                        start = -1 if gathered[position] < 0 else max(start, gathered[position])
                elif kind == WEIGHT_GRAD:
                    start = 0 if ran[INPUT_GRAD, position, microbatch] else -1
                elif ran[FORWARD, position, microbatch]:
                    start = 0 if position == positions - 1 else arrived[INPUT_GRAD, position, microbatch]
            if start < 0:  # finished, or its input has not arrived
                top -= 1
                queued[stage] = False
                continue
            start = max(start, free[stage])
            duration = _share(problem.duration[kind, position], piece, pieces)
            end = start + duration
            free[stage] = end
            work[stage] -= duration
            if end + work[stage] > cutoff:
                return int(end + work[stage])
            if piece == 0:
                held[stage] += problem.take[kind, position]
                peak[stage] = max(peak[stage], held[stage])
            held[stage] -= _share(problem.release[kind, position], piece, pieces)
            if record:
                times.start[stage, done[stage]], times.end[stage, done[stage]] = start, end
            done[stage] += 1
            makespan = max(makespan, end)
            if kind != WEIGHT_GRAD:
                sent = INPUT_GRAD if kind == FUSED else kind
                ran[sent, position, microbatch] = True
                if problem.sends[sent, position]:
                    outbox[out, 0], outbox[out, 1] = end, message_code(problem, sent, position, microbatch)
                    out += 1
            if kind >= WEIGHT_GRAD:
                weight_grads[position] -= 1
                if weight_grads[position] == 0 and problem.sends[REDUCE, position]:
                    outbox[out, 0], outbox[out, 1] = end, message_code(problem, REDUCE, position, 0)
                    out += 1
            continue
        elif heaped > 0:  # nothing moves without it, so nothing earlier can come
            ready, tie = heap[0, 0], heap[0, 1]
            heaped -= 1
            _pop(heap, heaped)
            row, kind = divmod(tie, 4)
            row, position = divmod(row, positions)
            microbatch = row // 2
            code = message_code(problem, kind, position, microbatch)
            wire = problem.wire[kind, position]
        else:
            break

        strict = wire >= 0 and listed_lengths[wire] >= 0
        if strict:
            ready_at[code] = ready
            pending += 1
        while True:
            if strict:  # serve from the head of the list as far as it is ready
                if served[wire] == listed_lengths[wire] or ready_at[listed[wire, served[wire]]] < 0:
                    break
                code = listed[wire, served[wire]]
                ready = ready_at[code]
                kind, position, microbatch = _decode_message(problem, code)
                served[wire] += 1
                pending -= 1
            start = ready if wire < 0 else max(ready, wire_free[wire])
            end = start + problem.serialisation[kind, position]
            arrival = end + problem.latency[kind, position]
            if wire >= 0:
                wire_free[wire] = end
            if kind >= GATHER:
                target = position
                if kind == GATHER:
                    gathered[position] = arrival
            else:
                target = position + 1 if kind == FORWARD else position - 1
                arrived[kind, target, microbatch] = arrival
            if record:
                times.message[kind, position, microbatch, 0] = ready
                times.message[kind, position, microbatch, 1] = start
                times.message[kind, position, microbatch, 2] = end
                times.message[kind, position, microbatch, 3] = arrival
            makespan = max(makespan, arrival)
            stage = problem.stage_of[target]
            if not queued[stage]:
                queued[stage] = True
                todo[top] = stage
                top += 1
            if not strict:
                break

    for stage in range(stages):
        pending += lengths[stage] - done[stage]
    return DEADLOCKED if pending > 0 else makespan


@compiled
def _decode(code: int) -> tuple[int, int, int, int, int]:
    """(kind, chunk, microbatch, piece, pieces) of a `block_code`."""
    kind, code = code & 3, code >> 2
    pieces, code = code & MAX_PIECES, code >> _PIECE_BITS
    piece, code = code & MAX_PIECES, code >> _PIECE_BITS
    return kind, code & (_MAX_CHUNKS - 1), code >> _CHUNK_BITS, piece, pieces


@compiled
def _decode_message(problem: CompiledProblem, code: int) -> tuple[int, int, int]:
    """(kind, sending position, microbatch) of a `message_code`."""
    row, microbatch = code // problem.microbatches, code % problem.microbatches
    return row // problem.positions, row % problem.positions, microbatch


@compiled
def _share(total: int, piece: int, pieces: int) -> int:
    """As `crosspipe.problem.costs.split`: the remainder goes to piece 0."""
    if pieces == 1:
        return total
    return total // pieces + (total % pieces if piece == 0 else 0)


@compiled
def _grown(heap: Ints) -> Ints:
    """The same heap with twice the room."""
    bigger = np.empty((2 * len(heap), 2), dtype=np.int64)
    for i in range(len(heap)):
        bigger[i, 0], bigger[i, 1] = heap[i, 0], heap[i, 1]
    return bigger


@compiled
def _push(heap: Ints, size: int, ready: int, tie: int) -> None:
    """Adds (ready, tie) to a binary heap of `size` entries."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent, 0] < ready or (heap[parent, 0] == ready and heap[parent, 1] < tie):
            break
        heap[child, 0], heap[child, 1] = heap[parent, 0], heap[parent, 1]
        child = parent
    heap[child, 0], heap[child, 1] = ready, tie


@compiled
def _pop(heap: Ints, size: int) -> None:
    """Removes the least entry of a binary heap; `size` entries are left."""
    ready, tie = heap[size, 0], heap[size, 1]
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        right = child + 1
        if right < size and (
            heap[right, 0] < heap[child, 0] or (heap[right, 0] == heap[child, 0] and heap[right, 1] < heap[child, 1])
        ):
            child = right
        if ready < heap[child, 0] or (ready == heap[child, 0] and tie < heap[child, 1]):
            break
        heap[hole, 0], heap[hole, 1] = heap[child, 0], heap[child, 1]
        hole = child
    heap[hole, 0], heap[hole, 1] = ready, tie
