"""`cross_ud_sub`: the greedy CrossUDSub of the CrossPipe paper (Chen et al., ATC'25), for traversal `ud`.

It builds a schedule forward in time, one piece of a block after another, and never takes a decision back. The paper
plans with every block cut in n_sub pieces; what can be executed has F and D whole and W in pieces only where the
Problem allows that. So it runs twice: once for the makespan of the idealised plan, once for the order that is returned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crosspipe.problem import Problem
from crosspipe.schedule import Block
from crosspipe.schedule.compiling import compiled
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


class Plan(NamedTuple):
    """What the greedy decided: `kind`, `microbatch`, `piece` of every step, [stage, step]; planned makespan in ns."""

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
    """The executable order, and the makespan of the paper's plan with every block in `pieces` pieces beside it."""
    cut = problem.weight_grad_pieces
    plan = greedy_plan(problem, (1, 1, cut))
    ideal = greedy_plan(problem, (pieces, pieces, pieces))
    orders = tuple(
        tuple(
            Block("FDW"[kind], 0, microbatch, piece, cut if kind == WEIGHT_GRAD else 1)
            for kind, microbatch, piece in zip(*steps, strict=True)
        )
        for steps in zip(plan.kind.tolist(), plan.microbatch.tolist(), plan.piece.tolist(), strict=True)
    )
    return Found(orders=orders, parameters={"pieces": pieces}, ideal_makespan_ns=ideal.makespan_ns)


def greedy_plan(problem: Problem, cut: tuple[int, int, int]) -> Plan:
    """Runs the greedy on a `ud` problem with F, D and W cut in `cut` pieces."""
    limit = np.array([NEVER if b is None else b for b in problem.activation_limit_bytes], dtype=np.int64)
    return Plan(*_greedy(compile_problem(problem), limit, np.array(cut, dtype=np.int64)))


@compiled
def _greedy(problem: CompiledProblem, limit: Ints, cut: Ints) -> tuple[Ints, Ints, Ints, int]:
    stages, microbatches = problem.stages, problem.microbatches
    steps = microbatches * cut.sum()
    kinds = np.empty((stages, steps), dtype=np.int64)
    owners = np.empty((stages, steps), dtype=np.int64)
    parts = np.empty((stages, steps), dtype=np.int64)
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
    for stage in range(stages):
        if problem.sends[GATHER, stage]:
            state.gathered[stage] = _send(problem, windows, GATHER, stage, 0)
    state.arrival[FORWARD, 0, :] = state.gathered[0]
    state.arrival[INPUT_GRAD, stages - 1, :] = 0
    acts = np.full(stages, NEVER)  # when each stage could act at all
    acts[0] = state.earliest[0, FORWARD] = state.gathered[0]
    end = 0
    for _ in range(stages * steps):
        # the stage that can act earliest
        actor = int(np.argmin(acts))
        now = acts[actor]
        kind = _choose(state, actor, now)
        # its next piece
        step, block, part = taken[actor], state.done[kind, actor], state.piece[kind, actor]
        kinds[actor, step], owners[actor, step], parts[actor, step] = kind, block, part
        taken[actor] += 1
        pieces = cut[kind]
        ends = now + _share(problem.duration[kind, actor], part, pieces)
        state.free[actor] = ends
        end = max(end, ends)
        if part == 0:
            state.held[actor] += problem.take[kind, actor]
        if kind == WEIGHT_GRAD:
            state.held[actor] -= _share(problem.release[kind, actor], part, pieces)
        receiver = -1
        if part + 1 < pieces:
            state.piece[kind, actor] += 1
        else:  # the block is complete: its message leaves
            state.piece[kind, actor] = 0
            state.done[kind, actor] += 1
            if kind == WEIGHT_GRAD:
                if state.done[kind, actor] == microbatches and problem.sends[REDUCE, actor]:
                    end = max(end, _send(problem, windows, REDUCE, actor, ends))
            else:
                state.held[actor] -= problem.release[kind, actor]
                state.last[actor] = kind
                if problem.sends[kind, actor]:
                    receiver = actor + 1 if kind == FORWARD else actor - 1
                    arrival = _send(problem, windows, kind, actor, ends)
                    earliest = state.gathered[receiver] if kind == FORWARD else 0
                    state.arrival[kind, receiver, block] = max(arrival, earliest)
        for stage in (actor, receiver):
            if stage >= 0:
                _look(problem, limit, state, stage)
                acts[stage] = state.earliest[stage].min()
    return kinds, owners, parts, end


@compiled
def _choose(state: State, stage: int, now: int) -> int:
    """Warm-up: F, since no D is there. Steady: F and D in turn. Tear-down: D before W. W where neither F nor D can."""
    other = FORWARD if state.last[stage] == INPUT_GRAD else INPUT_GRAD
    if state.earliest[stage, other] <= now:
        return other
    if state.earliest[stage, state.last[stage]] <= now:
        return int(state.last[stage])
    return WEIGHT_GRAD


@compiled
def _look(problem: CompiledProblem, limit: Ints, state: State, stage: int) -> None:
    """Brings `state.earliest[stage]` up to date."""
    earliest, now = state.earliest[stage], state.free[stage]
    earliest[:] = NEVER
    for kind in (FORWARD, INPUT_GRAD):
        if state.piece[kind, stage] > 0:  # F and D run through, once begun
            earliest[kind] = now
            return
    forward, input_grad, weight_grad = state.done[:, stage]
    held, keep, take = state.held[stage], problem.take[FORWARD, stage], problem.take[INPUT_GRAD, stage]
    if forward < problem.microbatches:
        # with every W done, D of the oldest microbatch must still fit, or nothing could ever go on
        settled = (forward + 1 - input_grad) * keep + take
        if held + keep <= limit[stage] and settled <= limit[stage]:
            earliest[FORWARD] = max(now, state.arrival[FORWARD, stage, forward])
    if input_grad < forward and held + take <= limit[stage]:
        earliest[INPUT_GRAD] = max(now, state.arrival[INPUT_GRAD, stage, input_grad])
    if weight_grad < input_grad:
        earliest[WEIGHT_GRAD] = now


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
    return total // pieces + (total % pieces if piece == 0 else 0)
