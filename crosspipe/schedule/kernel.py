"""The performance model, compiled: integer arrays in, makespan (and every start and end, if wanted) out.

It computes what `crosspipe.schedule.reference` defines, at tens of millions of blocks a second, and is what searchers
call. A worklist over stages is enough where every wire has one sender or a listed order; wires with several senders
are served from a heap in ready order, once nothing else can move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.encoding import (
    FORWARD,
    FUSED,
    GATHER,
    INPUT_GRAD,
    REDUCE,
    WEIGHT_GRAD,
    CompiledProblem,
    EncodedSchedule,
    Flags,
    Ints,
    block_code,
    compile_problem,
    decode,
    decode_message,
    encode,
    message_code,
)
from crosspipe.schedule.heap import grown, pop, push

__all__ = [
    "DEADLOCKED",
    "FORWARD",
    "FUSED",
    "GATHER",
    "INPUT_GRAD",
    "NEVER",
    "REDUCE",
    "WEIGHT_GRAD",
    "CompiledProblem",
    "EncodedSchedule",
    "Flags",
    "Ints",
    "Times",
    "block_code",
    "compile_problem",
    "encode",
    "evaluate",
    "message_code",
    "run",
]

NEVER = 2**62  # a cutoff that never cuts
DEADLOCKED = -1


class Times(NamedTuple):
    """All that happens, in ns: `start`, `end` [stage, i]; `message` [kind, sending position, microbatch, 4] with
    ready, start of service, end of service, arrival (-1 where not sent); `done[stage]` blocks; `peak[stage]` bytes."""

    start: Ints
    end: Ints
    message: Ints
    done: Ints
    peak: Ints


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
    """Fills `times` (start, end and message only if they have room) and returns what `evaluate` does.

    One step of the loop passes on a message just sent, or else runs one block of a stage that may have one, or else
    takes the message that is ready first from the heap.
    """
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
            kind, chunk, _, piece, pieces = decode(orders[stage, i])
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
            kind, position, microbatch = decode_message(problem, code)
            wire = problem.wire[kind, position]
            in_turn = wire < 0 or problem.single_sender[wire] or listed_lengths[wire] >= 0
            if problem.zero_length or not in_turn:
                if heaped == len(heap):
                    heap = grown(heap)
                tie = ((microbatch * 2 + (kind == FORWARD)) * positions + position) * 4 + kind
                push(heap, int(heaped), ready, tie)
                heaped += 1
                continue
        elif top > 0:
            stage = todo[top - 1]
            start = -1
            if done[stage] < lengths[stage]:
                kind, chunk, microbatch, piece, pieces = decode(orders[stage, done[stage]])
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
            pop(heap, heaped)
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
                kind, position, microbatch = decode_message(problem, code)
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
def _share(total: int, piece: int, pieces: int) -> int:
    """As `crosspipe.problem.costs.split`: the remainder goes to piece 0."""
    if pieces == 1:
        return total
    return total // pieces + (total % pieces if piece == 0 else 0)
