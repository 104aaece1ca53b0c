"""A compiled list scheduler: a policy of a few numbers per position in, an order of all blocks and messages out.

It plays the pipeline forward in time. Whenever a stage is free it takes, among the blocks that may start, the one whose
microbatch number plus *lag* is least, or waits a little for a better one that is on its way; wires choose alike. It
never exceeds a memory limit and cannot deadlock: what a stage holds can always finish, oldest microbatch first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosspipe.problem import Problem
from crosspipe.schedule.compiling import compiled, inlined
from crosspipe.schedule.kernel import (
    FORWARD,
    GATHER,
    INPUT_GRAD,
    NEVER,
    REDUCE,
    WEIGHT_GRAD,
    CompiledProblem,
    compile_problem,
    message_code,
)
from crosspipe.solver.bounds.paths import paths_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

END, WIRE, WAKE = range(3)  # events, in this order at equal times: a block ends, a wire may serve, an input arrives
MESSAGE = 3  # index of messages in Policy.wait, beside F, D and W


class Policy(NamedTuple):
    """What decides an order; lags are in microbatches, fractions allowed.

    `lag[kind, position, microbatch]` for F, D, W: a block's key is its microbatch plus lag, the least key goes first.
    `cap[position]` limits F started minus D started. `wait[kind, stage]`: a stage that could start a block of this kind
    waits instead for one with a lesser key that arrives within this fraction of its duration; so do, by
    `wait[MESSAGE, stage]`, the wires it sends on. `message_lag[kind, position, microbatch]` for F and D messages orders
    those wires that `chosen[wire]`; others serve first come first served.
    """

    lag: Floats
    cap: Ints
    wait: Floats
    message_lag: Floats
    chosen: Flags


class Limits(NamedTuple):
    """What the scheduler needs beside the CompiledProblem: `memory[stage]` bytes, the least time `after` the end of F
    and D [kind, position] and after the last block `after_stage`, in ns, and the message classes `kind * positions +
    position` that each wire carries (`classes[wire]`, the first `class_counts[wire]` count)."""

    memory: Ints
    after: Ints
    after_stage: Ints
    classes: Ints
    class_counts: Ints


def prepare(problem: Problem) -> tuple[CompiledProblem, Limits]:
    """The problem as the scheduler wants it: wires on which nothing takes time are dropped, as nobody queues there."""
    compiled_problem = compile_problem(problem)
    idle = [
        w for w in range(len(problem.wires)) if not compiled_problem.serialisation[compiled_problem.wire == w].any()
    ]
    wire = np.where(np.isin(compiled_problem.wire, idle), -1, compiled_problem.wire)
    sole = compiled_problem.single_sender.copy()
    sole[idle] = False
    compiled_problem = compiled_problem._replace(wire=wire, single_sender=sole)
    return compiled_problem, _limits(problem, compiled_problem)


def _limits(problem: Problem, compiled_problem: CompiledProblem) -> Limits:
    paths = paths_of(problem)
    turns = paths.turns_ns()
    positions = problem.positions
    reduce = [problem.message_hop("reduce", p) for p in range(positions)]
    delays = [hop.delay_ns if hop else 0 for hop in reduce]
    classes: list[list[int]] = [[] for _ in problem.wires]
    for kind in range(4):
        for p in range(positions):
            if kind != GATHER and compiled_problem.sends[kind, p] and compiled_problem.wire[kind, p] >= 0:
                classes[compiled_problem.wire[kind, p]].append(kind * positions + p)
    width = max((len(row) for row in classes), default=0)
    return Limits(
        memory=np.array(
            [NEVER if limit is None else limit for limit in problem.activation_limit_bytes], dtype=np.int64
        ),
        after=np.array(
            [[turns[p] + paths.input_grad[p] + paths.tail[p] for p in range(positions)], list(paths.tail)],
            dtype=np.int64,
        ),
        after_stage=np.array(
            [min(delays[problem.position(s, c)] for c in range(problem.chunks)) for s in range(problem.stages)],
            dtype=np.int64,
        ),
        classes=np.array([row + [-1] * (width - len(row)) for row in classes], dtype=np.int64).reshape(
            len(classes), width
        ),
        class_counts=np.array([len(row) for row in classes], dtype=np.int64),
    )


class Trace(NamedTuple):
    """What happened: `orders[stage, i]` = (kind * positions + position) * microbatches + microbatch of the blocks,
    `messages[wire, i]` = `message_code` in order of service; `start` [F D W, position, microbatch] of blocks and
    `service` [message kind, position, microbatch] of messages begin then, in ns. All empty: nothing is recorded."""

    orders: Ints
    messages: Ints
    start: Ints
    service: Ints


def new_trace(problem: CompiledProblem, record: bool = True) -> Trace:
    """An empty trace, with room for everything where it shall `record`."""
    stages, positions, n = (problem.stages, problem.positions, problem.microbatches) if record else (0, 0, 0)
    return Trace(
        orders=np.full((stages, 3 * n * (positions // max(1, stages))), -1, dtype=np.int64),
        messages=np.full((problem.wires if record else 0, 4 * positions * n), -1, dtype=np.int64),
        start=np.full((3, positions, n), -1, dtype=np.int64),
        service=np.full((4, positions, n), -1, dtype=np.int64),
    )


@compiled
def list_schedule(problem: CompiledProblem, limits: Limits, policy: Policy, cutoff: int, trace: Trace) -> int:
    """Makespan in ns of the order that `policy` makes, or NEVER as soon as it must exceed `cutoff`; fills `trace`."""
    stages, positions, n = problem.stages, problem.positions, problem.microbatches
    # arrays by their own names: each access through the tuple costs more than the arithmetic
    stage_of, position_of, duration, take, release = (
        problem.stage_of,
        problem.position_of,
        problem.duration,
        problem.take,
        problem.release,
    )
    latency, serialisation, wire_of, sends = problem.latency, problem.serialisation, problem.wire, problem.sends
    memory, after, after_stage = limits.memory, limits.after, limits.after_stage
    lag, cap, wait, message_lag, chosen = policy.lag, policy.cap, policy.wait, policy.message_lag, policy.chosen
    orders, messages, starts, services = trace.orders, trace.messages, trace.start, trace.service
    record = starts.size > 0

    shift = 1  # bits of a stage or wire in an event: time, what happens (2 bits), where
    while (1 << shift) < max(stages, problem.wires):
        shift += 1
    started = np.zeros((3, positions), dtype=np.int64)  # F, D, W
    arrived = np.full((2, positions, n), NEVER, dtype=np.int64)  # inputs of F and D, once known
    gathered = np.zeros(positions, dtype=np.int64)
    ready = np.full((4, positions, n), NEVER, dtype=np.int64)  # messages for wires
    served = np.zeros((4, positions), dtype=np.int64)
    wire_free = np.zeros(problem.wires, dtype=np.int64)
    wire_count = np.zeros(problem.wires, dtype=np.int64)
    busy = np.zeros(stages, dtype=np.int64)  # until
    running = np.full((stages, 3), -1, dtype=np.int64)  # kind, position, microbatch
    held = np.zeros(stages, dtype=np.int64)
    left = np.zeros(stages, dtype=np.int64)  # work
    done = np.zeros(stages, dtype=np.int64)
    heap = np.empty(15 * positions * n + 2 * (positions + stages + problem.wires), dtype=np.int64)  # all events ever
    size = 0
    makespan = 0

    for p in range(positions):
        stage = stage_of[p]
        left[stage] += n * (duration[FORWARD, p] + duration[INPUT_GRAD, p] + duration[WEIGHT_GRAD, p])
        if sends[GATHER, p]:
            start = 0
            if wire_of[GATHER, p] >= 0:
                start = wire_free[wire_of[GATHER, p]]
                wire_free[wire_of[GATHER, p]] += serialisation[GATHER, p]
            gathered[p] = start + serialisation[GATHER, p] + latency[GATHER, p]
            makespan = max(makespan, gathered[p])
        if p == 0:
            arrived[FORWARD, 0, :] = gathered[0]
        size = _push(heap, size, (((gathered[p] << 2) | WAKE) << shift) | stage)
    for wire in range(problem.wires):
        size = _push(heap, size, (((wire_free[wire] << 2) | WIRE) << shift) | wire)

    while size > 0:
        event, size = _pop(heap, size)
        time, what, place = event >> (shift + 2), (event >> shift) & 3, event & ((1 << shift) - 1)

        if what == END:
            kind, p, k = running[place, 0], running[place, 1], running[place, 2]
            held[place] -= release[kind, p]
            running[place, 0] = -1
            if kind == WEIGHT_GRAD and k == n - 1 and sends[REDUCE, p]:
                kind, k = REDUCE, 0
                if wire_of[REDUCE, p] < 0:
                    makespan = max(makespan, time + serialisation[REDUCE, p] + latency[REDUCE, p])
            if kind != WEIGHT_GRAD and sends[kind, p] and wire_of[kind, p] >= 0:
                ready[kind, p, k] = time
                size = _push(heap, size, (((time << 2) | WIRE) << shift) | wire_of[kind, p])

        if what == WIRE:
            wire = place
            if wire_free[wire] > time:
                continue
            kind, p = _choose_message(
                limits.classes[wire, : limits.class_counts[wire]], time, served, ready, chosen[wire], message_lag
            )
            if kind < 0:
                continue
            k = served[kind, p]
            if chosen[wire]:  # its one sender may just be making a better message
                stage = stage_of[p]
                other, q = running[stage, 0], running[stage, 1]
                if (
                    other != WEIGHT_GRAD
                    and other >= 0
                    and sends[other, q]
                    and wire_of[other, q] == wire
                    and running[stage, 2] + message_lag[other, q, running[stage, 2]] < k + message_lag[kind, p, k]
                    and busy[stage] - time <= wait[MESSAGE, stage] * serialisation[kind, p]
                ):
                    continue  # tried again when that block ends
            served[kind, p] += 1
            end = time + serialisation[kind, p]
            wire_free[wire] = end
            size = _push(heap, size, (((end << 2) | WIRE) << shift) | wire)
            makespan = max(makespan, end + latency[kind, p])
            if record:
                services[kind, p, k] = time
                messages[wire, wire_count[wire]] = message_code(problem, kind, p, k)
                wire_count[wire] += 1
            if kind == REDUCE:
                continue
            start = end
        else:
            stage = place
            if running[stage, 0] >= 0:
                continue
            kind, p = _choose_block(
                stage,
                time,
                n,
                position_of,
                duration,
                take,
                memory,
                lag,
                cap,
                wait,
                started,
                arrived,
                gathered,
                held,
            )
            if kind < 0:
                continue
            k = started[kind, p]
            end = time + duration[kind, p]
            if time + left[stage] + after_stage[stage] > cutoff:
                return NEVER
            if kind != WEIGHT_GRAD and end + after[kind, p] > cutoff:
                return NEVER
            started[kind, p] += 1
            left[stage] -= duration[kind, p]
            held[stage] += take[kind, p]
            busy[stage] = end
            running[stage, 0], running[stage, 1], running[stage, 2] = kind, p, k
            makespan = max(makespan, end)
            size = _push(heap, size, (end << (shift + 2)) | stage)
            if record:
                starts[kind, p, k] = time
                orders[stage, done[stage]] = (kind * positions + p) * n + k
                done[stage] += 1
            if kind == FORWARD and p == positions - 1:
                arrived[INPUT_GRAD, p, k] = end
            if kind == WEIGHT_GRAD or not sends[kind, p] or wire_of[kind, p] >= 0:
                continue
            start = end + serialisation[kind, p]

        target = p + 1 if kind == FORWARD else p - 1  # a message is on its way
        arrival = start + latency[kind, p]
        arrived[kind, target, k] = arrival
        if busy[stage_of[target]] < arrival or running[stage_of[target], 0] < 0:
            size = _push(heap, size, (((arrival << 2) | WAKE) << shift) | stage_of[target])
    return makespan if makespan <= cutoff and started.sum() == 3 * positions * n else NEVER


@inlined
def _choose_block(
    stage: int,
    time: int,
    n: int,
    position_of: Ints,
    duration: Ints,
    take: Ints,
    memory: Ints,
    lag: Floats,
    cap: Ints,
    wait: Floats,
    started: Ints,
    arrived: Ints,
    gathered: Ints,
    held: Ints,
) -> tuple[int, int]:
    """(kind, position) of the block to start now; kind -1: none can, or the stage rather waits for one."""
    best, best_kind, best_p = np.inf, -1, -1
    soon, soon_at = np.inf, NEVER  # the best block that is on its way
    for chunk in range(position_of.shape[1]):
        p = position_of[stage, chunk]
        for kind in range(2):
            k = started[kind, p]
            if k == n or arrived[kind, p, k] == NEVER or held[stage] + take[kind, p] > memory[stage]:
                continue
            key = k + lag[kind, p, k]
            if key >= best:
                continue
            at = arrived[kind, p, k]
            if kind == FORWARD:
                at = max(at, gathered[p])
                if k - started[INPUT_GRAD, p] >= cap[p]:
                    continue
                if not _keeps_room(stage, chunk, position_of, take, memory, started):
                    continue
            if at <= time:
                best, best_kind, best_p = key, kind, p
            elif key < soon or (key == soon and at < soon_at):
                soon, soon_at = key, at
        k = started[WEIGHT_GRAD, p]
        if k < started[INPUT_GRAD, p] and k + lag[WEIGHT_GRAD, p, k] < best:
            best, best_kind, best_p = k + lag[WEIGHT_GRAD, p, k], WEIGHT_GRAD, p
    if best_kind >= 0 and soon < best and soon_at - time <= wait[best_kind, stage] * duration[best_kind, best_p]:
        best_kind = -1  # its arrival wakes the stage
    return best_kind, best_p


@compiled
def _keeps_room(stage: int, chunk: int, position_of: Ints, take: Ints, memory: Ints, started: Ints) -> bool:
    """Whether, after one more F of `chunk`, the microbatches of the stage can still finish one after another, oldest
    first (the banker's rule). All W that may run are counted as run, since nothing hinders them.

    What a microbatch holds and still needs changes only at the numbers where some F or D stands, so that only those
    are tried.
    """
    chunks = position_of.shape[1]
    passed, peak, held = 0, 0, take[FORWARD, position_of[stage, chunk]]
    for c in range(chunks):
        p = position_of[stage, c]
        passed += take[FORWARD, p]
        peak = max(peak, passed + take[INPUT_GRAD, p])
        held += (started[FORWARD, p] - started[INPUT_GRAD, p]) * take[FORWARD, p]
    if held + peak <= memory[stage]:
        return True
    first = position_of[stage, 0]
    for kind in range(2):
        for at in range(chunks):
            k = started[kind, position_of[stage, at]] + (kind == FORWARD and at == chunk)
            if k < started[INPUT_GRAD, first] or k >= started[FORWARD, first] + (chunk == 0):
                continue
            passed, peak, others = 0, 0, 0
            for c in range(chunks):
                p = position_of[stage, c]
                forward, gradient = started[FORWARD, p] + (c == chunk), started[INPUT_GRAD, p]
                if gradient <= k:
                    passed += take[FORWARD, p]
                    peak = max(peak, passed + take[INPUT_GRAD, p])
                others += max(0, forward - max(gradient, k + 1)) * take[FORWARD, p]
            if others + peak > memory[stage]:
                return False
    return True


@inlined
def _choose_message(
    classes: Ints, time: int, served: Ints, ready: Ints, chosen: bool, message_lag: Floats
) -> tuple[int, int]:
    """(kind, sending position) of the message to serve now; kind -1: none is ready."""
    positions, n = ready.shape[1], ready.shape[2]
    best, best_ready, best_kind, best_p = np.inf, NEVER, -1, -1
    for code in classes:
        kind, p = code // positions, code % positions
        k = served[kind, p]
        if k == n or ready[kind, p, k] > time:
            continue
        if chosen:
            at, key = 0, k + message_lag[kind, p, k]
        else:
            at, key = ready[kind, p, k], float((k * 2 + (kind == FORWARD)) * positions + p)
        if at < best_ready or (at == best_ready and key < best):
            best, best_ready, best_kind, best_p = key, at, kind, p
    return best_kind, best_p


@compiled
def _push(heap: Ints, size: int, event: int) -> int:
    """Adds an event to a binary heap; its new size."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= event:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = event
    return size + 1


@compiled
def _pop(heap: Ints, size: int) -> tuple[int, int]:
    """(the least event, removed; the heap's size)."""
    least, size = heap[0], size - 1
    last = heap[size]
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if last <= heap[child]:
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = last
    return least, size
