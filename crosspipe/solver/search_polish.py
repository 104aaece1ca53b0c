"""Random moves on the critical path: the compiled second half of the policy search.

The incumbent's own start times become the lags, so that the policy repeats it; then a block (or message) that delays
the end is moved before what it waits for, or behind the run of blocks that it keeps waiting. The list scheduler fits
the rest around it. The idea is that of critical-block moves in job shops (Nowicki and Smutnicki, 1996).
"""

from __future__ import annotations

import numpy as np

from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.kernel import FORWARD, INPUT_GRAD, WEIGHT_GRAD, CompiledProblem
from crosspipe.solver.search_kernel import Ints, Limits, Policy, Trace, list_schedule
from crosspipe.solver.search_moves import State, _below, _copy, _uniform, shake

NUDGE = 1e-6  # microbatches: less than any two start times differ by

BLOCK, MESSAGE = 0, 1  # what a step of the critical path is
FIRST, STAGE, WIRE, INPUT = range(4)  # what a step waited for: nothing, the one before on its stage, wire, its input


@compiled
def polish(
    problem: CompiledProblem,
    limits: Limits,
    policy: Policy,
    makespan: int,
    target: int,
    evaluations: int,
    remembered: int,
    period: int,
    trace: Trace,
    trial_trace: Trace,
    state: State,
) -> int:
    """Improves `policy` in place by at most `evaluations` moves; returns its makespan, stops at `target`.

    `makespan` is that of `policy` on entry. Moves are accepted as by `climb`. `period` in ns scales times to lags; both
    traces have room for everything.
    """
    current = shake(problem, policy, 0, state)
    now = list_schedule(problem, limits, current, makespan, trace)
    if now > makespan or makespan <= target:
        return makespan
    follow(problem, trace, period, current)
    steps = np.empty((4 * problem.positions * problem.microbatches * 2, 5), dtype=np.int64)
    count = critical_path(problem, trace, steps)
    history = np.full(remembered, makespan, dtype=np.int64)
    trial = shake(problem, current, 0, state)
    for i in range(evaluations):
        _copy(current, trial)
        if not _move(problem, trial, steps, count, state):
            continue
        past = i % remembered
        allowed = max(now, history[past])
        found = list_schedule(problem, limits, trial, allowed, trial_trace)
        if found <= allowed:
            now = found
            follow(problem, trial_trace, period, trial)
            _copy(trial, current)
            count = critical_path(problem, trial_trace, steps)
            if now < makespan:
                makespan = now
                _copy(current, policy)
                if makespan <= target:
                    break
        history[past] = min(history[past], now)
    return makespan


@compiled
def follow(problem: CompiledProblem, trace: Trace, period: int, policy: Policy) -> None:
    """Makes `policy` repeat the trace: keys are start times, and nothing may delay what comes before it."""
    positions, n = problem.positions, problem.microbatches
    for p in range(positions):
        for k in range(n):
            for kind in range(3):
                policy.lag[kind, p, k] = trace.start[kind, p, k] / period - k
            for kind in range(2):
                if trace.service[kind, p, k] >= 0:
                    policy.message_lag[kind, p, k] = trace.service[kind, p, k] / period - k
    policy.chosen[:] = problem.single_sender
    policy.wait[:] = 1.0


@compiled
def critical_path(problem: CompiledProblem, trace: Trace, steps: Ints) -> int:
    """Fills `steps[i]` with (what, kind, position, microbatch, waited for) from the last block back to the first event;
    returns how many there are."""
    positions, n = problem.positions, problem.microbatches
    duration, serialisation, latency = problem.duration, problem.serialisation, problem.latency
    index = np.empty((3, positions, n), dtype=np.int64)  # place in its stage's order
    last_end, kind, p, k = -1, 0, 0, 0
    for stage in range(problem.stages):
        for i in range(trace.orders.shape[1]):
            code = trace.orders[stage, i]
            a, q, m = code // n // positions, code // n % positions, code % n
            index[a, q, m] = i
            end = trace.start[a, q, m] + duration[a, q]
            if end > last_end:
                last_end, kind, p, k = end, a, q, m
    turn = np.full((4, positions, n), -1, dtype=np.int64)  # place in its wire's order
    for wire in range(problem.wires):
        for i in range(trace.messages.shape[1]):
            code = trace.messages[wire, i]
            if code < 0:
                break
            turn[code // n // positions, code // n % positions, code % n] = i

    what, count = BLOCK, 0
    while True:
        steps[count, 0], steps[count, 1], steps[count, 2], steps[count, 3], steps[count, 4] = what, kind, p, k, FIRST
        count += 1
        if what == BLOCK:
            start = trace.start[kind, p, k]
            stage, i = problem.stage_of[p], index[kind, p, k]
            if start == 0:
                return count
            if i > 0:
                code = trace.orders[stage, i - 1]
                a, q, m = code // n // positions, code // n % positions, code % n
                if trace.start[a, q, m] + duration[a, q] == start:
                    steps[count - 1, 4] = STAGE
                    kind, p, k = a, q, m
                    continue
            steps[count - 1, 4] = INPUT
            if kind == INPUT_GRAD and p == positions - 1:
                kind = FORWARD
            elif kind == WEIGHT_GRAD:
                kind = INPUT_GRAD
            else:
                sender = p - 1 if kind == FORWARD else p + 1
                if sender < 0:
                    return count  # waited for its gather
                if problem.wire[kind, sender] >= 0:
                    sent = trace.service[kind, sender, k] + serialisation[kind, sender] + latency[kind, sender]
                    if sent != start:
                        return count
                    what = MESSAGE
                p = sender
        else:
            service, wire, i = trace.service[kind, p, k], problem.wire[kind, p], turn[kind, p, k]
            what = BLOCK
            if i > 0 and trace.start[kind, p, k] + duration[kind, p] < service:
                code = trace.messages[wire, i - 1]
                a, q, m = code // n // positions, code // n % positions, code % n
                if a > 1:
                    return count
                steps[count - 1, 4] = WIRE
                what, kind, p, k = MESSAGE, a, q, m
            else:
                steps[count - 1, 4] = INPUT


@compiled
def _move(problem: CompiledProblem, policy: Policy, steps: Ints, count: int, state: State) -> bool:
    """Moves one block or message of the critical path within its run on a stage or wire; False: none could be."""
    for _ in range(20):
        i = _below(state, count)
        link = steps[i, 4]
        if link != STAGE and link != WIRE:
            continue
        first = i  # the run: steps first .. last, later to earlier
        while first > 0 and steps[first - 1, 4] == link:
            first -= 1
        last = i + 1
        while last < count - 1 and steps[last, 4] == link:
            last += 1
        draw = _uniform(state)
        if draw < 0.4:  # swap neighbours
            mover, anchor, earlier = i, i + 1, True
        elif draw < 0.7:  # to the front of the run, or anywhere on the way
            mover = first + _below(state, last - first)
            anchor = mover + 1 + _below(state, last - mover)
            earlier = True
        else:  # behind its end
            mover = first + 1 + _below(state, last - first)
            anchor = first + _below(state, mover - first)
            earlier = False
        kind, p, k = steps[mover, 1], steps[mover, 2], steps[mover, 3]
        a, q, m = steps[anchor, 1], steps[anchor, 2], steps[anchor, 3]
        if kind == a and p == q:
            continue
        if link == STAGE:
            _place(policy.lag, kind, p, k, m + policy.lag[a, q, m], earlier)
        else:
            _place(policy.message_lag, kind, p, k, m + policy.message_lag[a, q, m], earlier)
        return True
    return False


@compiled
def _place(lag: np.ndarray, kind: int, p: int, k: int, key: float, earlier: bool) -> None:
    """Puts microbatch k just before (`earlier`) or behind `key`, and those of its kind that it would overtake too."""
    if earlier:
        for m in range(k, -1, -1):
            if m + lag[kind, p, m] < key:
                break
            lag[kind, p, m] = key - NUDGE * (k - m + 1) - m
    else:
        for m in range(k, lag.shape[2]):
            if m + lag[kind, p, m] > key:
                break
            lag[kind, p, m] = key + NUDGE * (m - k + 1) - m
