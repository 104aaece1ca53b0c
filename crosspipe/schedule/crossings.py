"""Site crossings on the critical path against the number of microbatches: the CrossPipe paper's central analysis.

A static order has a path that crosses sites again with every few microbatches, so that the latency is paid again and
again ("bubble strides"; Chen et al., ATC'25). Crossings are the slope of the makespan in the latency, so the table says
what more microbatches cost on a longer link. It solves nothing: a family is any function from a Problem to a Schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import linear_regression

import msgspec

from crosspipe.errors import FieldError, Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule.order import Schedule
from crosspipe.schedule.simulation import simulate
from crosspipe.schedule.timeline import Timeline


class Crossings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family at one number of microbatches: crossings on the critical path, makespan, largest peak of any stage.

    All three are None where the family does not allow the count or does not fit the memory; `refused` says why.
    """

    family: str
    microbatches: int
    crossings: int | None = None
    makespan_ns: int | None = None
    peak_memory_bytes: int | None = None
    refused: str = ""


def site_crossings(timeline: Timeline) -> int:
    """Messages between sites whose latency lies on the critical path of a timeline, predicted or measured."""
    return sum(step.crosses_sites for step in timeline.critical_path())


def crossings_table(
    problem_of: Callable[[int], Problem],
    families: Mapping[str, Callable[[Problem], Schedule]],
    microbatches: Iterable[int],
) -> tuple[Crossings, ...]:
    """A row per family and number of microbatches, families first.

    `problem_of(n)` is the Problem with n microbatches; a family makes a Schedule for it, or raises FieldError or
    Infeasible.
    """
    counts = tuple(microbatches)
    return tuple(_row(name, family, problem_of(count)) for name, family in families.items() for count in counts)


def _row(name: str, family: Callable[[Problem], Schedule], problem: Problem) -> Crossings:
    try:
        schedule = family(problem)
    except (FieldError, Infeasible) as error:
        return Crossings(family=name, microbatches=problem.microbatches, refused=str(error))
    timeline = simulate(problem, schedule)
    return Crossings(
        family=name,
        microbatches=problem.microbatches,
        crossings=site_crossings(timeline),
        makespan_ns=timeline.makespan_ns,
        peak_memory_bytes=max(timeline.peak_memory_bytes()),
    )


def crossings_per_microbatch(rows: Iterable[Crossings]) -> dict[str, float | None]:
    """Per family the slope of crossings over microbatches (least squares); None with fewer than two counts."""
    points: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        of_family = points.setdefault(row.family, [])
        if row.crossings is not None:
            of_family.append((row.microbatches, row.crossings))
    return {
        name: linear_regression(*zip(*found, strict=True)).slope if len({n for n, _ in found}) > 1 else None
        for name, found in points.items()
    }
