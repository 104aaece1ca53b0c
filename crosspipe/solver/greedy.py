"""`cross_ud_sub`: the greedy CrossUDSub of the CrossPipe paper (Chen et al., ATC'25), for traversal `ud`.

It builds a schedule forward in time, one piece of a block after another, and never takes a decision back. The paper
plans with every block cut in n_sub pieces, time and memory alike; what can be executed has F and D whole and W in
pieces only where the Problem allows that. So it runs twice: once for the makespan of the idealised plan, once for the
order that is returned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crosspipe.errors import UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Block
from crosspipe.schedule.compiling import compiled, inlined
from crosspipe.schedule.kernel import (
    FORWARD,
    GATHER,
    INPUT_GRAD,
    NEVER,
    REDUCE,
    WEIGHT_GRAD,
    CompiledProblem,
    Ints,
    compile_problem,
)
from crosspipe.solver.certify import Found
from crosspipe.solver.static import Orders
from crosspipe.solver.tournament import first, new_tournament, play

MOST_STEPS = 20_000_000  # of the idealised plan: seconds, which nothing interrupts


class Plan(NamedTuple):
    """What the greedy decided: `kind`, `microbatch`, `piece` of every step, [stage, step], empty where only the
    planned `makespan_ns` was asked for."""

    kind: Ints
    microbatch: Ints
    piece: Ints
    makespan_ns: int


class State(NamedTuple):
    """How far each stage is; arrays are filled in place. Kinds are F, D, W; a `ud` stage is its position."""

    arrival: Ints  # [F or D, stage, microbatch]: when the input is there; NEVER: not known yet
    gathered: Ints  # [stage]: when its parameters are there (ZeRO-1)
    done: Ints  # [kind, stage]: whole blocks
    piece: Ints  # [kind, stage]: pieces done of the block in work
    last: Ints  # [stage]: F or D, whichever ran last
    free: Ints  # [stage]: end of its last piece
    held: Ints  # [stage]: bytes
    earliest: Ints  # [stage, kind]: when its next piece could run; NEVER: not known yet, or memory forbids it


class Windows(NamedTuple):
    """Per wire the windows in which it is busy, sorted: [wire, window], the first `used[wire]` of them stand."""

    start: Ints
    end: Ints
    used: Ints


def cross_ud_sub(problem: Problem, pieces: int) -> Found:
    """The executable order, and the makespan of the paper's plan with every block in `pieces` pieces beside it.

    Raises UsageError where these are more than `MOST_STEPS` pieces in all.
    """
    blocks = 3 * problem.microbatches * problem.stages
    if blocks * pieces > MOST_STEPS:
        most = MOST_STEPS // blocks
        raise UsageError("pieces", pieces, f"cuts {blocks} blocks in {blocks * pieces} pieces", f"use at most {most}")
    ideal = greedy_plan(problem, (pieces, pieces, pieces), record=False)
    return Found(orders=greedy_orders(problem), parameters={"pieces": pieces}, ideal_makespan_ns=ideal.makespan_ns)


def greedy_orders(problem: Problem) -> Orders:
    """The executable order: F and D whole, W in as many pieces as the problem allows."""
    cut = problem.weight_grad_pieces
    plan = greedy_plan(problem, (1, 1, cut))
    return tuple(
        tuple(
            Block("FDW"[kind], 0, microbatch, piece, cut if kind == WEIGHT_GRAD else 1)
            for kind, microbatch, piece in zip(*steps, strict=True)
        )
        for steps in zip(plan.kind.tolist(), plan.microbatch.tolist(), plan.piece.tolist(), strict=True)
    )


def greedy_plan(problem: Problem, cut: tuple[int, int, int], record: bool = True) -> Plan:
    """Runs the greedy on a `ud` problem with F, D and W cut in `cut` pieces; without `record` for its makespan only."""
    limit = np.array([NEVER if b is None else b for b in problem.activation_limit_bytes], dtype=np.int64)
    return Plan(*_greedy(compile_problem(problem), limit, np.array(cut, dtype=np.int64), record))


@compiled
def _greedy(problem: CompiledProblem, limit: Ints, cut: Ints, record: bool) -> tuple[Ints, Ints, Ints, int]:
    stages, microbatches = problem.stages, problem.microbatches
    duration, take, release, sends = problem.duration, problem.take, problem.release, problem.sends
    total = microbatches * cut.sum()
    shape = (stages, total) if record else (0, 0)
    kinds, owners, parts = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int64)
    taken = np.zeros(stages, dtype=np.int64)
    most = 2 * (microbatches + 1) * stages
    windows = Windows(
        start=np.empty((problem.wires, most), dtype=np.int64),
        end=np.empty((problem.wires, most), dtype=np.int64),
        used=np.zeros(problem.wires, dtype=np.int64),
    )
    state = State(
        arrival=np.full((2, stages, microbatches), NEVER),
        gathered=np.zeros(stages, dtype=np.int64),
        done=np.zeros((3, stages), dtype=np.int64),
        piece=np.zeros((3, stages), dtype=np.int64),
        last=np.full(stages, INPUT_GRAD),
        free=np.zeros(stages, dtype=np.int64),
        held=np.zeros(stages, dtype=np.int64),
        earliest=np.full((stages, 3), NEVER),
    )
    arrival, gathered, done, piece = state.arrival, state.gathered, state.done, state.piece
    free, held, earliest = state.free, state.held, state.earliest
    for stage in range(stages):
        if sends[GATHER, stage]:
            gathered[stage] = _send(problem, windows, GATHER, stage, 0)
    arrival[FORWARD, 0, :] = gathered[0]
    arrival[INPUT_GRAD, stages - 1, :] = 0
    acts = new_tournament(stages)  # when each stage could act at all
    earliest[0, FORWARD] = gathered[0]
    play(acts, 0, gathered[0])
    end, left = 0, stages * total
    while left > 0:
        # the stage that can act earliest
        actor, now = first(acts)
        kind = _choose(state, actor, now)
        # its next piece; of F and D also those that follow, but for the last one: its message leaves in its turn
        pieces, block = cut[kind], done[kind, actor]
        while True:
            part = piece[kind, actor]
            if record:
                step = taken[actor]
                kinds[actor, step], owners[actor, step], parts[actor, step] = kind, block, part
                taken[actor] += 1
            left -= 1
            now += _share(duration[kind, actor], part, pieces)
            held[actor] += _share(take[kind, actor], part, pieces) - _share(release[kind, actor], part, pieces)
            piece[kind, actor] = part = part + 1
            more = kind != WEIGHT_GRAD and part < pieces - 1
            if not more or held[actor] + _share(take[kind, actor], part, pieces) > limit[actor]:
                break
        free[actor] = now
        end = max(end, now)
        receiver = -1
        if part == pieces:  # the block is complete: its message leaves
            piece[kind, actor] = 0
            done[kind, actor] += 1
            if kind == WEIGHT_GRAD:
                if done[kind, actor] == microbatches and sends[REDUCE, actor]:
                    end = max(end, _send(problem, windows, REDUCE, actor, now))
            else:
                state.last[actor] = kind
                if sends[kind, actor]:
                    receiver = actor + 1 if kind == FORWARD else actor - 1
                    at = _send(problem, windows, kind, actor, now)
                    arrival[kind, receiver, block] = max(at, gathered[receiver] if kind == FORWARD else 0)
        play(acts, actor, _look(take, limit, cut, microbatches, state, actor))
        if receiver >= 0:
            play(acts, receiver, _look(take, limit, cut, microbatches, state, receiver))
    return kinds, owners, parts, end


@inlined
def _choose(state: State, stage: int, now: int) -> int:
    """Warm-up: F, since no D is there. Steady: F and D in turn. Tear-down: D before W. W where neither F nor D can."""
    other = FORWARD if state.last[stage] == INPUT_GRAD else INPUT_GRAD
    if state.earliest[stage, other] <= now:
        return other
    if state.earliest[stage, state.last[stage]] <= now:
        return int(state.last[stage])
    return WEIGHT_GRAD


@inlined
def _look(take: Ints, limit: Ints, cut: Ints, microbatches: int, state: State, stage: int) -> int:
    """Brings `state.earliest[stage]` up to date; when the stage could act at all.

    F and D run through once begun; only pieces of W come between theirs, where memory forbids the next one.
    """
    now, room = state.free[stage], limit[stage] - state.held[stage]
    forward, input_grad = state.done[FORWARD, stage], state.done[INPUT_GRAD, stage]
    weight_grad = state.done[WEIGHT_GRAD, stage]
    at_forward = at_input_grad = at_weight_grad = NEVER
    if weight_grad < input_grad:
        at_weight_grad = now
    if state.piece[FORWARD, stage] > 0:
        part, pieces = state.piece[FORWARD, stage], cut[FORWARD]
        if _share(take[FORWARD, stage], part, pieces) <= room:
            at_forward = now
    elif state.piece[INPUT_GRAD, stage] > 0:
        part, pieces = state.piece[INPUT_GRAD, stage], cut[INPUT_GRAD]
        if _share(take[INPUT_GRAD, stage], part, pieces) <= room:
            at_input_grad = now
    else:
        keep, more = take[FORWARD, stage], take[INPUT_GRAD, stage]
        # with every W done, D of the oldest microbatch must still fit, or nothing could ever go on
        settles = (forward + 1 - input_grad) * keep + more <= limit[stage]
        if forward < microbatches and settles and _share(keep, 0, cut[FORWARD]) <= room:
            at_forward = max(now, state.arrival[FORWARD, stage, forward])
        if input_grad < forward and _share(more, 0, cut[INPUT_GRAD]) <= room:
            at_input_grad = max(now, state.arrival[INPUT_GRAD, stage, input_grad])
    state.earliest[stage, FORWARD], state.earliest[stage, INPUT_GRAD] = at_forward, at_input_grad
    state.earliest[stage, WEIGHT_GRAD] = at_weight_grad
    return int(min(at_forward, at_input_grad, at_weight_grad))


@compiled
def _send(problem: CompiledProblem, windows: Windows, kind: int, position: int, ready: int) -> int:
    """Puts a message in the earliest free window of its wire; its arrival in ns."""
    serialisation, wire = problem.serialisation[kind, position], problem.wire[kind, position]
    start = ready
    if wire >= 0:
        place = count = windows.used[wire]
        while place > 0 and windows.end[wire, place - 1] > ready:
            place -= 1
        while place < count and windows.start[wire, place] < start + serialisation:
            start = windows.end[wire, place]
            place += 1
        for later in range(count, place, -1):
            windows.start[wire, later] = windows.start[wire, later - 1]
            windows.end[wire, later] = windows.end[wire, later - 1]
        windows.start[wire, place], windows.end[wire, place] = start, start + serialisation
        windows.used[wire] = count + 1
    return int(start + serialisation + problem.latency[kind, position])


@compiled
def _share(total: int, piece: int, pieces: int) -> int:
    """As `crosspipe.problem.costs.split`: the remainder goes to piece 0."""
    if pieces == 1:
        return total
    return total // pieces + (total % pieces if piece == 0 else 0)
