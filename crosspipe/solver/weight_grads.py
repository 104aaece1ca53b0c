"""Places W in a given order of F and D, by the block times: where a stage would wait, or memory forbids the next F.

This is how the zero-bubble schedules (Qi et al., ICLR'24) are generated: the order of F and D follows from the family,
where W goes follows from the times. Which gaps too short for a W are filled all the same is a rule; the caller tries
them all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crosspipe.schedule.compiling import compiled, inlined
from crosspipe.schedule.kernel import (
    FORWARD,
    INPUT_GRAD,
    NEVER,
    WEIGHT_GRAD,
    CompiledProblem,
    EncodedSchedule,
    Ints,
    block_code,
)
from crosspipe.solver.tournament import first, new_tournament, play


class Rule(NamedTuple):
    """Whether W may start in a gap shorter than itself before an F, before a D, and only if the gap would otherwise
    make the stage idle for longer than the worst stage so far."""

    before_forward: bool
    before_input_grad: bool
    only_if_worst: bool


RULES = tuple(Rule(f, d, w) for w in (True, False) for f in (True, False) for d in (True, False))


class State(NamedTuple):
    """How far each stage is; arrays are filled in place."""

    order: Ints  # [stage, i]: kind * chunks + chunk
    placed: Ints  # [stage]: blocks in its order
    free: Ints  # [stage]: ns
    held: Ints  # [stage]: bytes
    idle: Ints  # [stage]: ns it waited since its first block
    pending: Ints  # [stage, i]: positions of the D done, in order; their W run in this order
    input_grads: Ints  # [stage]: how many these are
    weight_grads: Ints  # [stage]: how many of their W are placed


@compiled
def with_weight_grads(problem: CompiledProblem, skeleton: Ints, limit: Ints, rule: Rule) -> Ints:
    """The order with W, placed as if messages never queued.

    `skeleton[stage, i]` and the result hold kind * chunks + chunk, kinds F 0, D 1, W 2, microbatches in order. W of a
    stage run in the order of their D. `limit[stage]` is in bytes; where no W is left to make room, it is exceeded.
    """
    stages, positions, n = problem.stages, problem.positions, problem.microbatches
    chunks, total = positions // stages, skeleton.shape[1]
    stage_of, position_of = problem.stage_of, problem.position_of
    duration, take, release = problem.duration, problem.take, problem.release
    delay = problem.serialisation + problem.latency
    state = State(
        order=np.empty((stages, 3 * chunks * n), dtype=np.int64),
        placed=np.zeros(stages, dtype=np.int64),
        free=np.zeros(stages, dtype=np.int64),
        held=np.zeros(stages, dtype=np.int64),
        idle=np.zeros(stages, dtype=np.int64),
        pending=np.empty((stages, chunks * n), dtype=np.int64),
        input_grads=np.zeros(stages, dtype=np.int64),
        weight_grads=np.zeros(stages, dtype=np.int64),
    )
    arrival = np.full((2, positions, n), NEVER)  # of the inputs of F and D
    arrival[FORWARD, 0, :] = 0
    started = np.zeros((2, positions), dtype=np.int64)
    done = np.zeros(stages, dtype=np.int64)  # blocks of the skeleton
    acts = new_tournament(stages)  # when each stage could run its next block
    play(acts, stage_of[0], 0)
    for _ in range(stages * total):
        stage, _ = first(acts)
        kind, chunk = divmod(skeleton[stage, done[stage]], chunks)
        p = position_of[stage, chunk]
        k = started[kind, p]
        at = arrival[kind, p, k]
        while _weight_grad_first(limit, rule, take, duration, state, stage, kind, p, at):
            _place_weight_grad(duration, release, state, stage, stages, chunks)
        start = max(state.free[stage], at)
        end = start + duration[kind, p]
        state.idle[stage] += start - state.free[stage] if done[stage] > 0 else 0
        state.free[stage] = end
        state.held[stage] += take[kind, p] - release[kind, p]
        state.order[stage, state.placed[stage]] = kind * chunks + chunk
        state.placed[stage] += 1
        started[kind, p] += 1
        done[stage] += 1
        if kind == INPUT_GRAD:
            state.pending[stage, state.input_grads[stage]] = p
            state.input_grads[stage] += 1
        elif p == positions - 1:
            arrival[INPUT_GRAD, p, k] = end
        target, receiver = (p + 1 if kind == FORWARD else p - 1), stage
        if 0 <= target < positions:
            arrival[kind, target, k] = end + delay[kind, p]
            receiver = stage_of[target]
        for s in (stage, receiver):
            when = NEVER
            if done[s] < total:
                line = skeleton[s, done[s]]
                q = position_of[s, line % chunks]
                when = max(state.free[s], arrival[line // chunks, q, started[line // chunks, q]])
            play(acts, s, when)
    for stage in range(stages):
        while state.weight_grads[stage] < state.input_grads[stage]:
            _place_weight_grad(duration, release, state, stage, stages, chunks)
    return state.order


@inlined
def _weight_grad_first(
    limit: Ints, rule: Rule, take: Ints, duration: Ints, state: State, stage: int, kind: int, p: int, at: int
) -> bool:
    """Whether a W goes before the stage's next block, of `kind` at position `p`, whose input is there `at`."""
    if state.weight_grads[stage] == state.input_grads[stage]:
        return False
    if state.held[stage] + take[kind, p] > limit[stage]:
        return True
    gap = at - state.free[stage]
    if duration[WEIGHT_GRAD, state.pending[stage, state.weight_grads[stage]]] <= gap:
        return True
    if gap <= 0 or (rule.only_if_worst and state.idle[stage] + gap <= state.idle.max()):
        return False
    return rule.before_forward if kind == FORWARD else rule.before_input_grad


@inlined
def _place_weight_grad(duration: Ints, release: Ints, state: State, stage: int, stages: int, chunks: int) -> None:
    """Runs the stage's oldest pending W now."""
    p = state.pending[stage, state.weight_grads[stage]]
    state.order[stage, state.placed[stage]] = WEIGHT_GRAD * chunks + p // stages
    state.placed[stage] += 1
    state.weight_grads[stage] += 1
    state.free[stage] += duration[WEIGHT_GRAD, p]
    state.held[stage] -= release[WEIGHT_GRAD, p]


def encoded(problem: CompiledProblem, order: Ints) -> EncodedSchedule:
    """The order of `with_weight_grads` as the compiled model reads it; every wire first come first served."""
    lengths = np.full(problem.stages, order.shape[1])
    return EncodedSchedule(
        _codes(problem, order), lengths, np.zeros((problem.wires, 0), dtype=np.int64), np.full(problem.wires, -1)
    )


@compiled
def _codes(problem: CompiledProblem, order: Ints) -> Ints:
    chunks = problem.positions // problem.stages
    codes = np.empty_like(order)
    for stage in range(order.shape[0]):
        count = np.zeros(3 * chunks, dtype=np.int64)
        for i in range(order.shape[1]):
            line = order[stage, i]
            codes[stage, i] = block_code(line // chunks, line % chunks, count[line])
            count[line] += 1
    return codes
