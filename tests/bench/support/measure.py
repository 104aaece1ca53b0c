"""Measuring one cell: search, check, re-time with both models, and compare with every static schedule that fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib import import_module

from support.instances import Instance
from support.page import percent
from support.results import Cell, now
from support.setup import Setup

from crosspipe.errors import CrosspipeError, FieldError, Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import check, simulate, simulate_reference
from crosspipe.solver import SCHEDULES, Progress, solve
from crosspipe.solver.exact import least
from crosspipe.solver.search import policy_search

STATIC_FAMILIES = ("static", "generated")


@cache
def warm_up(traversal: str, workers: int) -> None:
    """Compiles and loads what a first search would, so that no cell pays for it; the bound alone settles small ones."""
    import_module("crosspipe.solver.cpsat")
    policy_search(least(traversal), evaluations=1)
    solve(least(traversal), f"cross_{traversal}", time_limit_s=2, workers=workers)


def measure(instance: Instance, setup: Setup, show: Callable[[str], None]) -> Cell:
    """One cell. What the solver refuses or gets wrong becomes a fault of the cell, not an end of the run."""
    warm_up(instance.traversal, setup.workers)
    problem = instance.problem
    told: list[Progress] = []

    def listen(progress: Progress) -> None:
        told.append(progress)
        show(f"{progress.makespan_ns / 1e6:.2f} ms, gap {percent(progress.gap)}, {progress.elapsed_s:.0f} s")

    began = time.perf_counter()
    try:
        schedule = solve(
            problem,
            instance.schedule,
            time_limit_s=instance.time_limit_s,
            workers=setup.workers,
            seed=setup.seed,
            progress=listen,
        )
    except CrosspipeError as error:
        return _cell(instance, time.perf_counter() - began, None, faults=(str(error),))
    wall_s = time.perf_counter() - began
    certificate, provenance = schedule.certificate, schedule.provenance
    assert certificate is not None
    assert provenance is not None
    faults = [str(violation) for violation in check(problem, schedule)]
    for model in (simulate, simulate_reference):
        timed = model(problem, schedule).makespan_ns
        if timed != certificate.makespan_ns:
            faults.append(f"{model.__name__} says {timed} ns, the certificate {certificate.makespan_ns} ns")
    return _cell(
        instance,
        wall_s,
        told[0].elapsed_s if told else wall_s,
        makespan_ns=certificate.makespan_ns,
        lower_bound_ns=certificate.lower_bound_ns,
        proven_by=certificate.proven_by,
        found_by=str(provenance.parameters.get("found_by", "")),
        explanation=certificate.explanation,
        statics=statics(problem),
        faults=tuple(faults),
    )


def _cell(instance: Instance, wall_s: float, first_s: float | None, **found: object) -> Cell:
    return Cell(
        key=instance.key,
        problem_digest=instance.problem.digest(),
        schedule=instance.schedule,
        time_limit_s=instance.time_limit_s,
        finished=now(),
        wall_s=wall_s,
        first_s=wall_s if first_s is None else first_s,
        **found,
    )


def statics(problem: Problem) -> dict[str, int]:
    """Makespan in ns of every static schedule of the problem's traversal that allows its counts and fits its memory."""
    found = {}
    for name, entry in SCHEDULES.items():
        if entry.traversal == problem.traversal and entry.family in STATIC_FAMILIES:
            try:
                schedule = solve(problem, name)
            except (FieldError, Infeasible):
                continue
            assert schedule.certificate is not None
            found[name] = schedule.certificate.makespan_ns
    return found
