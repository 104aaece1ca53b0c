"""CP-SAT (Google OR-tools): from a known schedule to a better one, or to the proof that there is none.

It never starts from less than what it is given, and what it returns is only a claim: `exact` re-times and checks it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ortools.sat.python import cp_model

from crosspipe.problem import Problem
from crosspipe.schedule import Block, Message, Schedule, simulate
from crosspipe.solver.assignment import hint, read
from crosspipe.solver.bounds import lower_bound
from crosspipe.solver.inorder import decisions, in_order
from crosspipe.solver.model import build
from crosspipe.solver.ticks import in_ticks

PROBING_STOPS_PAYING = 8_000  # order decisions; above, presolve would probe for longer than it then needs to solve


class Claim(NamedTuple):
    """What CP-SAT says: `status` in its own words, a lower bound, and orders (None: it found nothing) with makespan.

    `proved` is whether that bound is its own work and not the one it was given, in whole ticks. `tick_ns` is the unit
    it counted in; with `error_ns` > 0 durations were rounded down to it, and the bound can lie that much below what
    could be proven without rounding.
    """

    status: str
    bound_ns: int
    proved: bool
    makespan_ns: int | None
    orders: tuple[tuple[Block, ...], ...] | None
    messages: dict[str, tuple[Message, ...]]
    tick_ns: int
    error_ns: int


def improve(
    problem: Problem,
    start: Schedule,
    *,
    lower_ns: int,
    time_limit_s: float,
    workers: int,
    seed: int,
    listen: Callable[[int, int], None],
) -> Claim | None:
    """Searches from `start`, a valid schedule, down to the bound `lower_ns`; None if `start` has no normal form.

    `listen(makespan_ns, bound_ns)` hears of improvements. With one worker and the same seed the search is the same
    until the time limit cuts it. An interrupt ends it with the best so far.
    """
    began = time.monotonic()
    ticks = in_ticks(problem, simulate(problem, start).makespan_ns)
    normal = in_order(ticks.problem, start)
    if normal is None:
        return None
    timeline = simulate(ticks.problem, normal)
    # the true problem's bound need not hold for the rounded one
    lower = lower_bound(ticks.problem).value_ns if ticks.error_ns else -(-lower_ns // ticks.tick_ns)
    model = build(ticks.problem, min(lower, timeline.makespan_ns), timeline.makespan_ns, as_ready=ticks.error_ns == 0)
    hint(model, timeline)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.1, time_limit_s - (time.monotonic() - began))
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    if decisions(problem) > PROBING_STOPS_PAYING:
        solver.parameters.cp_model_probing_level = 0
    solver.parameters.catch_sigint_signal = False  # it would leave Python without its own handler
    listener = _Listener(lambda best, bound: listen(best * ticks.tick_ns, bound * ticks.tick_ns))
    with ThreadPoolExecutor(max_workers=1) as thread:  # so that this one can take an interrupt
        solving = thread.submit(solver.solve, model.cp, listener)
        try:
            status = solving.result()
        except KeyboardInterrupt:
            solver.stop_search()
            status = solving.result()
        except BaseException:  # a signal's handler wants this process for something else: leaving the block would wait
            solver.stop_search()
            raise
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    orders, messages = read(model, solver.response_proto.solution) if solved else (None, {})
    believable = status not in (cp_model.MODEL_INVALID, cp_model.INFEASIBLE)
    bound = max(lower, round(solver.best_objective_bound) if believable else 0)
    return Claim(
        status=solver.status_name(status),
        bound_ns=bound * ticks.tick_ns,
        proved=bound > lower,
        makespan_ns=round(solver.objective_value) * ticks.tick_ns if solved else None,
        orders=orders,
        messages=messages,
        tick_ns=ticks.tick_ns,
        error_ns=ticks.error_ns,
    )


class _Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
    def __init__(self, listen: Callable[[int, int], None]) -> None:
        super().__init__()
        self._listen = listen

    def on_solution_callback(self) -> None:
        self._listen(round(self.objective_value), round(self.best_objective_bound))
