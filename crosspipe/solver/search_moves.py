"""Random local moves on a policy: the compiled hill climb of the policy search.

A move shifts some numbers of the policy on one stage, a range of stages, a slope over them, or all, for some or all
microbatches. An evaluation ends as soon as the makespan must exceed what would be accepted.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.kernel import CompiledProblem
from crosspipe.solver.search_kernel import MESSAGE, Limits, Policy, Trace, list_schedule

State = NDArray[np.uint64]


@compiled
def climb(
    problem: CompiledProblem,
    limits: Limits,
    policy: Policy,
    makespan: int,
    target: int,
    evaluations: int,
    remembered: int,
    fine: float,
    unrecorded: Trace,
    state: State,
) -> int:
    """Improves `policy` in place by at most `evaluations` moves; returns its makespan, stops at `target`.

    A move is kept if it makes nothing longer than it was `remembered` moves ago (late acceptance, Burke and Bykov,
    2017). `makespan` is that of `policy` on entry; `state` is the random state, advanced in place.
    """
    current = shake(problem, policy, 0, state)
    trial = shake(problem, policy, 0, state)
    history = np.full(remembered, makespan, dtype=np.int64)
    now = makespan
    for i in range(evaluations):
        if makespan <= target:
            break
        _copy(current, trial)
        for _ in range(1 + _below(state, 3)):
            _move(problem, trial, fine, state)
        past = i % remembered
        allowed = max(now, history[past])
        found = list_schedule(problem, limits, trial, allowed, unrecorded)
        if found <= allowed:
            now = found
            _copy(trial, current)
            if now <= makespan:
                makespan = now
                _copy(current, policy)
        history[past] = min(history[past], now)
    return makespan


@compiled
def shake(problem: CompiledProblem, policy: Policy, moves: int, state: State) -> Policy:
    """A copy of `policy` after some random moves, whatever they do to it."""
    copy = Policy(
        policy.lag.copy(), policy.cap.copy(), policy.wait.copy(), policy.message_lag.copy(), policy.chosen.copy()
    )
    for _ in range(moves):
        _move(problem, copy, 0.5, state)
    return copy


@compiled
def _copy(source: Policy, target: Policy) -> None:
    target.lag[:] = source.lag
    target.cap[:] = source.cap
    target.wait[:] = source.wait
    target.message_lag[:] = source.message_lag
    target.chosen[:] = source.chosen


@compiled
def _move(problem: CompiledProblem, policy: Policy, fine: float, state: State) -> None:
    """One random change of the policy; with chance `fine` it touches only some microbatches."""
    stages, positions, n = problem.stages, problem.positions, problem.microbatches
    chunks = positions // stages
    first, last = _range(stages, state)
    chunk = _below(state, chunks + 1)  # chunks: all of them
    begin, end = _range(n, state) if _uniform(state) < fine else (0, n - 1)
    what = _below(state, 12)
    size = _normal(state) * (0.25, 1.0, 4.0)[_below(state, 3)]
    slope = _uniform(state) < 0.25 and last > first
    if what < 7:  # lag of F, D or W
        kind = (0, 0, 1, 1, 2, 2, 2)[what]
        if kind == 2 and _uniform(state) < 0.2:
            size *= 10.0
        for stage in range(first, last + 1):
            share = (stage - first) / (last - first) if slope else 1.0
            for c in range(chunks):
                if chunk == chunks or c == chunk:
                    policy.lag[kind, problem.position_of[stage, c], begin : end + 1] += size * share
    elif what < 9:
        step = (1 + _below(state, 3)) * (1 if _uniform(state) < 0.5 else -1)
        for stage in range(first, last + 1):
            for c in range(chunks):
                if chunk == chunks or c == chunk:
                    p = problem.position_of[stage, c]
                    policy.cap[p] = min(max(1, policy.cap[p] + step), n)
    elif what < 10 or not np.any(problem.single_sender):
        patience = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)[_below(state, 6)] * _uniform(state)
        policy.wait[_below(state, 3), first : last + 1] = patience
    elif what < 11:
        p = _below(state, positions)
        for _ in range(positions):
            if problem.wire[0, p] >= 0 or problem.wire[1, p] >= 0:
                break
            p = (p + 1) % positions
        policy.message_lag[_below(state, 2), p, begin : end + 1] += size
    else:
        if _uniform(state) < 0.5:
            policy.wait[MESSAGE, first : last + 1] = _uniform(state)
        else:
            wire = _below(state, problem.wires)
            policy.chosen[wire] = problem.single_sender[wire] and not policy.chosen[wire]


@compiled
def _range(stages: int, state: State) -> tuple[int, int]:
    """First and last stage that a move touches: one, a range, or all."""
    draw = _uniform(state)
    if draw < 0.4:
        one = _below(state, stages)
        return one, one
    if draw < 0.6:
        return 0, stages - 1
    a, b = _below(state, stages), _below(state, stages)
    return min(a, b), max(a, b)


@compiled
def _bits(state: State) -> int:
    """The next 63 random bits: splitmix64 (Steele et al., 2014), so that a seed gives the same search everywhere."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))) >> np.uint64(1))


@compiled
def _uniform(state: State) -> float:
    return _bits(state) / 9223372036854775808.0


@compiled
def _below(state: State, end: int) -> int:
    return _bits(state) % end


@compiled
def _normal(state: State) -> float:
    return math.sqrt(-2.0 * math.log(1.0 - _uniform(state))) * math.cos(2.0 * math.pi * _uniform(state))
