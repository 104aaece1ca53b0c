"""Candidates: valid schedules of a Problem from every cheap method. Searches start from the best of them.

A method that does not allow the counts, or does not fit the memory, simply contributes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from crosspipe.errors import FieldError, Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, check, simulate
from crosspipe.solver.certify import Found, schedule_of
from crosspipe.solver.static import FIXED_ORDERS, Orders
from crosspipe.solver.zero_bubble import GENERATED_ORDERS


class Candidate(NamedTuple):
    """A valid schedule and who made it."""

    name: str
    found: Found
    makespan_ns: int


def judged(problem: Problem, name: str, found: Found) -> Candidate:
    """The candidate, if our own check finds nothing wrong with it; else Infeasible, with the first violation."""
    schedule = schedule_of(problem, name, found)
    violations = check(problem, schedule)
    if violations:
        raise Infeasible(f"{name}: {violations[0].message}")
    return Candidate(name, found, simulate(problem, schedule).makespan_ns)


def candidates(problem: Problem, hints: Iterable[Schedule]) -> Iterator[Candidate]:
    """Valid schedules: hints, static families, the greedy and, always, one microbatch at a time.

    The problem's memory must have room for one microbatch (`Problem.check_memory_floor`).
    """
    from crosspipe.schedule.kernel import compile_problem, encode, evaluate  # numba

    for hint in hints:
        with suppress(Infeasible):
            yield judged(problem, "hint", Found(orders=hint.orders, messages=hint.messages))
    methods: list[tuple[str, Callable[[], Found]]] = []
    for name, (traversal, orders) in (FIXED_ORDERS | GENERATED_ORDERS).items():
        if traversal == problem.traversal:
            methods.append((name, partial(_ordered, problem, orders)))
    if problem.traversal == "ud":
        from crosspipe.solver.greedy import greedy_orders  # compiles with numba

        methods.append(("cross_ud_sub", partial(_ordered, problem, greedy_orders)))
    methods.append(("one_at_a_time", partial(_ordered, problem, one_at_a_time)))
    compiled = compile_problem(problem)
    for name, method in methods:
        with suppress(FieldError):
            found = method()
            makespan, peaks = evaluate(compiled, encode(problem, schedule_of(problem, name, found)))
            limits = zip(peaks.tolist(), problem.activation_limit_bytes, strict=True)
            if all(limit is None or peak <= limit for peak, limit in limits):
                yield Candidate(name, found, makespan)


def _ordered(problem: Problem, orders: Callable[[Problem], Orders]) -> Found:
    return Found(orders=orders(problem))


def one_at_a_time(problem: Problem) -> Orders:
    """Each microbatch there and back before the next: no schedule holds less."""
    chunks = range(problem.chunks)
    orders = []
    for stage in range(problem.stages):
        visits = sorted(chunks, key=lambda chunk: problem.position(stage, chunk))
        row = []
        for m in range(problem.microbatches):
            row += [Block("F", chunk, m) for chunk in visits]
            row += [Block(kind, chunk, m) for chunk in reversed(visits) for kind in "DW"]
        orders.append(tuple(row))
    return tuple(orders)
