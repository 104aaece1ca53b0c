"""From an order that somebody found to a Schedule that may be believed: re-timed, checked, certified, signed.

Nothing a search or an external solver says about its own result is taken over: the makespan is what `simulate` says,
validity is what `check` says, and a claimed bound above that makespan is dropped, and said to be.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time

import msgspec

from crosspipe.errors import CrosspipeError, Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Certificate, Message, Provenance, Schedule, Timeline, check, simulate
from crosspipe.solver.bounds import Bound
from crosspipe.solver.request import Request

LIBRARIES = ("crosspipe", "numpy", "numba", "ortools")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a method hands over: an order, what it claims to have proven, and how it got there.

    `messages` lists the order of a wire's messages where it differs from first come first served; `proofs` are lower
    bounds beside our own; `notes` are sentences for the certificate's explanation.
    """

    orders: tuple[tuple[Block, ...], ...]
    messages: dict[str, tuple[Message, ...]] = {}
    proofs: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()
    parameters: dict[str, str | int | float | bool | None] = {}
    ideal_makespan_ns: int | None = None


def schedule_of(problem: Problem, name: str, found: Found) -> Schedule:
    """The bare Schedule, without certificate."""
    return Schedule(
        name=name,
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        orders=found.orders,
        messages=found.messages,
        problem_digest=problem.digest(),
        ideal_makespan_ns=found.ideal_makespan_ns,
    )


def certified(problem: Problem, name: str, found: Found, request: Request) -> Schedule:
    """The Schedule with its certificate, from the best of our own bound and the found proofs, and with its provenance.

    Raises Infeasible if the schedule exceeds a memory limit.
    """
    schedule = schedule_of(problem, name, found)
    timeline = simulate(problem, schedule)
    require_memory(problem, name, timeline)
    if violations := check(problem, schedule):
        raise CrosspipeError(f"{name} made an invalid schedule, please report it: {violations[0].message}")
    makespan = timeline.makespan_ns
    believable, notes = [], list(found.notes)
    for bound in (request.bound, *found.proofs):
        if bound.value_ns <= makespan:
            believable.append(bound)
        else:
            notes.append(f"dropped: {bound.proven_by} claims {bound.value_ns} ns, above the re-timed {makespan} ns")
    best = max(believable, key=lambda bound: bound.value_ns, default=NO_BOUND)
    certificate = Certificate(
        makespan_ns=makespan,
        lower_bound_ns=best.value_ns,
        proven_by=best.proven_by,
        explanation="; ".join((best.explanation, *notes)),
        assumptions=best.assumptions,
    )
    provenance = Provenance(
        method=name,
        parameters=found.parameters,
        seed=request.seed,
        workers=request.workers,
        versions=versions(),
        wall_s=time.monotonic() - request.started_s,
    )
    return msgspec.structs.replace(schedule, certificate=certificate, provenance=provenance)


NO_BOUND = Bound(value_ns=0, proven_by="nothing", explanation="no lower bound stands")


def require_memory(problem: Problem, name: str, timeline: Timeline) -> None:
    """Raises Infeasible, with stage, need and limit, where a timeline holds more than a stage may."""
    for stage, (need, limit) in enumerate(
        zip(timeline.peak_memory_bytes(), problem.activation_limit_bytes, strict=True)
    ):
        if limit is not None and need > limit:
            raise Infeasible(
                f"{name}: stage {stage} needs {need} bytes of activations, its limit is {limit} "
                f"(activation_limit_bytes[{stage}]); raise the limit or choose a schedule that holds less"
            )


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide a result; a library that is not installed is left out."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
