"""Policy search: a compiled list scheduler under a few numbers per position, improved by random local moves.

For `ud`, `wave` and `loop`, any block times, memory limits and shared wires; it proves nothing. Some rough policies
race: all are improved a little, the better half twice as long, and so on; when the last one is stuck, shaken copies
race anew. The order of messages is part of the answer where one stage sends all of a wire.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from crosspipe.errors import UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Message, Provenance, Schedule, check, simulate
from crosspipe.schedule.order import MESSAGE_KINDS
from crosspipe.solver.bounds.paths import paths_of

if TYPE_CHECKING:  # numba loads only where something is searched
    from crosspipe.schedule.kernel import CompiledProblem
    from crosspipe.solver.search_kernel import Limits, Policy, Trace
    from crosspipe.solver.search_moves import State

FIELD = 8  # policies in a race
COARSE, FINE, CRITICAL = "coarse", "fine", "critical"  # sorts of moves
SHARE = 100  # evaluations each gets in the first heat
PATIENCE = 1600  # evaluations without improvement after which the last of a race is stuck
HISTORY = 20  # a climb accepts what is no longer than it was so many moves ago
LOOK_S = 0.5  # time between two looks at the clock


def policy_search(
    problem: Problem,
    *,
    budget_s: float | None = None,
    seed: int = 0,
    target_ns: int | None = None,
    start: Iterable[Schedule] = (),
    evaluations: int | None = None,
) -> Schedule:
    """The best Schedule found within `budget_s` seconds or with `evaluations` policies tried, whichever ends first.

    Always within the memory limits, and never longer than the best valid schedule of `start`. Ends as soon as
    `target_ns` is reached. With `evaluations` and no `budget_s` the result depends on the seed alone. An interrupt
    (SIGINT) ends it with the best so far. The first call ever compiles its kernels; those seconds are not counted.

    Raises Infeasible where a stage cannot hold one microbatch, UsageError where nothing would end the search.
    """
    if budget_s is None and evaluations is None:
        raise UsageError("budget_s", None, "nothing ends the search", "give seconds or evaluations")
    problem.check_memory_floor()
    started = time.monotonic()
    candidates = [schedule for schedule in start if not check(problem, schedule)]
    race = _prepare(problem, seed, target_ns, budget_s, evaluations)
    found = _schedule(race, _best_policy(race))
    found = msgspec.structs.replace(
        found,
        provenance=Provenance(
            method="policy search",
            parameters={"evaluations": race.spent, "budget_s": budget_s},
            seed=seed,
            wall_s=time.monotonic() - started,
        ),
    )
    return min([*candidates, found], key=lambda schedule: simulate(problem, schedule).makespan_ns)


class _Runner(NamedTuple):
    """A policy and its makespan in ns."""

    makespan_ns: int
    policy: Policy


class _Race(msgspec.Struct):
    """What all heats share: the compiled problem, the random state, the budget and what is spent of it."""

    problem: Problem
    compiled: CompiledProblem
    limits: Limits
    unrecorded: Trace
    traces: tuple[Trace, Trace]
    period_ns: int
    state: State
    target_ns: int
    evaluations: float
    deadline_s: float | None = None
    spent: int = 0
    rate: float = 1000.0  # evaluations a second
    interrupted: bool = False

    def field(self) -> int:
        """How many policies race: fewer where there is time for few evaluations only."""
        expected = min(
            self.evaluations, self.rate * (math.inf if self.deadline_s is None else self.deadline_s - time.monotonic())
        )
        return int(max(1, min(FIELD, expected // (5 * SHARE))))

    def patience_s(self) -> float:
        """How long to go on before the next look at the clock; without a deadline nobody looks."""
        return math.inf if self.deadline_s is None else min(LOOK_S, self.deadline_s - time.monotonic())

    def over(self, best_ns: int) -> bool:
        """Whether to stop: target reached, budget spent, or interrupted."""
        late = self.deadline_s is not None and time.monotonic() >= self.deadline_s
        return self.interrupted or late or best_ns <= self.target_ns or self.spent >= self.evaluations


def _prepare(
    problem: Problem, seed: int, target_ns: int | None, budget_s: float | None, evaluations: int | None
) -> _Race:
    from crosspipe.solver.search_kernel import list_schedule, new_trace, prepare
    from crosspipe.solver.search_moves import climb, shake
    from crosspipe.solver.search_polish import polish

    compiled, limits = prepare(problem)
    race = _Race(
        problem=problem,
        compiled=compiled,
        limits=limits,
        unrecorded=new_trace(compiled, record=False),
        traces=(new_trace(compiled), new_trace(compiled)),
        period_ns=_period_ns(compiled),
        state=np.array([seed], dtype=np.uint64),
        target_ns=target_ns or 0,
        evaluations=math.inf if evaluations is None else evaluations,
    )
    policy = next(_rough_policies(race))
    list_schedule(compiled, limits, policy, 0, race.unrecorded)  # compiles, if need be
    spare = shake(compiled, policy, 0, race.state)
    climb(compiled, limits, spare, 0, 0, 0, HISTORY, 0.0, race.unrecorded, race.state)
    polish(compiled, limits, spare, 0, 0, 0, HISTORY, race.period_ns, *race.traces, race.state)
    race.deadline_s = None if budget_s is None else time.monotonic() + budget_s
    return race


def _best_policy(race: _Race) -> Policy:
    """The best policy that the budget finds."""
    from crosspipe.schedule.kernel import NEVER
    from crosspipe.solver.search_kernel import list_schedule
    from crosspipe.solver.search_moves import shake

    def run(policy: Policy) -> _Runner:
        race.spent += 1
        return _Runner(list_schedule(race.compiled, race.limits, policy, NEVER, race.unrecorded), policy)

    field: list[_Runner] = []
    began = time.perf_counter()
    for policy in _rough_policies(race):
        field.append(run(policy))
        if race.over(field[-1].makespan_ns):
            break
    race.rate = len(field) / max(1e-6, time.perf_counter() - began)
    distinct = {runner.makespan_ns: runner for runner in reversed(field)}
    field = [distinct[makespan] for makespan in sorted(distinct)][: race.field()]
    best, share = field[0], SHARE
    while not race.over(best.makespan_ns):
        before = field[0].makespan_ns
        if len(field) > 1:
            field = [_improve(race, runner, share, COARSE) for runner in field]
            field = sorted(field, key=lambda runner: runner.makespan_ns)[: (len(field) + 1) // 2]
            share *= 2
        else:
            share = min(share, PATIENCE)
            for moves in (COARSE, FINE, CRITICAL):
                field = [_improve(race, field[0], share, moves)]
            if field[0].makespan_ns == before and share == PATIENCE:
                field = [run(shake(race.compiled, best.policy, 3 * 2**i, race.state)) for i in range(4)]
                share = SHARE
            elif field[0].makespan_ns == before:
                share *= 2
        best = min(best, field[0], key=lambda runner: runner.makespan_ns)
    return best.policy


def _improve(race: _Race, runner: _Runner, share: int, moves: str) -> _Runner:
    """The runner after `share` moves of one sort, or fewer if time is up."""
    from crosspipe.solver.search_moves import climb
    from crosspipe.solver.search_polish import polish

    makespan, policy = runner
    common = (race.compiled, race.limits, policy)
    left = share
    while left > 0 and not race.over(makespan):
        step = int(min(left, race.evaluations - race.spent, max(1, race.rate * race.patience_s())))
        began = time.perf_counter()
        until = (makespan, race.target_ns, step, HISTORY)
        try:
            if moves == CRITICAL:
                makespan = polish(*common, *until, race.period_ns, *race.traces, race.state)
            else:
                makespan = climb(*common, *until, 0.6 if moves == FINE else 0.0, race.unrecorded, race.state)
        except KeyboardInterrupt:
            race.interrupted = True
        race.rate = step / max(1e-6, time.perf_counter() - began)
        race.spent += step
        left -= step
    return _Runner(makespan, policy)


def _rough_policies(race: _Race) -> Iterator[Policy]:
    """Where to start from: D first; F first up to as many ahead as memory, or a ramp down the positions, allows; all
    in the order of a periodic schedule in which a microbatch never waits.

    Each with W last and W in turn, with patience for better blocks and without, and with and without choosing the order
    of messages.
    """
    from crosspipe.solver.search_kernel import Policy

    positions, n, sole = race.compiled.positions, race.compiled.microbatches, race.compiled.single_sender
    paths, period = paths_of(race.problem), race.period_ns
    starts = np.array([paths.head, paths.gradient_head]) / period
    ends = starts + np.array([paths.forward, paths.input_grad]) / period
    ramp, zero = np.arange(positions, 0, -1), np.zeros(positions, dtype=np.int64)
    lags = [
        ([forward + zero, zero], [zero, zero - n], cap + zero)  # F and D blocks, F and D messages, F ahead of D
        for forward, cap in ((n, ramp), (-n, ramp), (n, n), (-n, n), (-ramp, n))
    ]
    lags += [(list(starts * stretch), list(ends * stretch), zero + n) for stretch in (1.0, 1.5, 0.7)]
    for (forward_lag, input_grad_lag), message_lag, cap in lags:
        for weight_grad_lag in (10 * n, 0.5):
            for patience in (0.5, 0.0):
                for choose in (False, True) if sole.any() else (False,):
                    lag = np.array([forward_lag, input_grad_lag, input_grad_lag + weight_grad_lag], dtype=np.float64)
                    yield Policy(
                        lag=np.repeat(lag[:, :, None], n, axis=2),
                        cap=np.minimum(n, cap),
                        wait=np.full((4, race.compiled.stages), patience),
                        message_lag=np.repeat(np.array(message_lag, dtype=np.float64)[:, :, None], n, axis=2),
                        chosen=sole & choose,
                    )


def _period_ns(compiled: CompiledProblem) -> int:
    """What the busiest stage or wire needs per microbatch."""
    stages = np.zeros(compiled.stages)
    np.add.at(stages, compiled.stage_of, compiled.duration[:3].sum(axis=0))
    wires = [compiled.serialisation[:2][compiled.wire[:2] == w].sum() for w in range(compiled.wires)]
    return max(1, int(stages.max()), *(int(w) for w in wires))


def _schedule(race: _Race, policy: Policy) -> Schedule:
    """The policy's order as a Schedule; messages are listed where first come first served would be longer."""
    from crosspipe.schedule.kernel import NEVER
    from crosspipe.solver.search_kernel import list_schedule, new_trace

    problem, n = race.problem, race.problem.microbatches
    trace = new_trace(race.compiled)
    list_schedule(race.compiled, race.limits, policy, NEVER, trace)

    def block(code: int) -> Block:
        row, microbatch = divmod(code, n)
        kind, position = divmod(row, problem.positions)
        return Block("FDW"[kind], problem.place(position)[1], microbatch)

    def message(code: int) -> Message:
        row, microbatch = divmod(code, n)
        kind, position = divmod(row, problem.positions)
        return Message(MESSAGE_KINDS[kind], position, microbatch)

    listed = {
        wire: tuple(message(code) for code in trace.messages[i].tolist() if code >= 0)
        for i, wire in enumerate(problem.wires)
        if policy.chosen[i]
    }
    plain = Schedule(
        name="policy_search",
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=n,
        orders=tuple(tuple(block(code) for code in row) for row in trace.orders.tolist()),
        problem_digest=problem.digest(),
    )
    chosen = msgspec.structs.replace(plain, messages=listed)
    return min(plain, chosen, key=lambda schedule: simulate(problem, schedule).makespan_ns)
