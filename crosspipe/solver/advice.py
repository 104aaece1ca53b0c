"""What to do about a Problem: which schedule and traversal, how much more latency it stands, which change helps most.

Nothing here is a new method: it asks `solve` about the Problem and about its neighbours (more memory, a faster link, a
larger batch, the sites cut elsewhere), all with the same time, and orders the answers. `crosspipe advise` prints them.
Latency tolerance is that of a fixed order, as in LLAMP (Shen et al., SC'24).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from crosspipe.errors import FieldError, Infeasible
from crosspipe.problem import BlockCost, Hop, Problem
from crosspipe.problem.costs import split
from crosspipe.schedule import Schedule, simulate
from crosspipe.schedule.crossings import site_crossings
from crosspipe.solver.portfolio import SCHEDULES, solve

SEARCHED = ("exact", "portfolio")  # families that use all the time they are given
Say = Callable[[str], None]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule of one Problem, judged. Times in ns, memory in bytes; `refused` says why there is no schedule."""

    name: str
    problem: Problem
    schedule: Schedule | None = None
    makespan_ns: int = 0
    lower_bound_ns: int = 0
    peak_bytes: int = 0
    crossings: int = 0
    refused: str = ""

    @property
    def per_microbatch_ns(self) -> float:
        """Makespan over microbatches: what compares across batches."""
        return self.makespan_ns / self.problem.microbatches

    @property
    def static(self) -> bool:
        """Whether the order was fixed before the delay was known."""
        return SCHEDULES[self.name].family in ("static", "generated")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing done differently, in words, and the best schedule found for it; None where none fits."""

    words: str
    choice: Choice | None


def judge(problem: Problem, name: str, *, time_limit_s: float, workers: int | None = None, seed: int = 0) -> Choice:
    """The schedule `name` for `problem`, or why there is none."""
    try:
        schedule = solve(problem, name, time_limit_s=time_limit_s, workers=workers, seed=seed)
    except (Infeasible, FieldError) as error:
        return Choice(name=name, problem=problem, refused=str(error))
    timeline = simulate(problem, schedule)
    certificate = schedule.certificate
    assert certificate is not None
    return Choice(
        name=name,
        problem=problem,
        schedule=schedule,
        makespan_ns=timeline.makespan_ns,
        lower_bound_ns=certificate.lower_bound_ns,
        peak_bytes=max(timeline.peak_memory_bytes(), default=0),
        crossings=site_crossings(timeline),
    )


def choices(problems: Mapping[str, Problem], *, time_limit_s: float, workers: int | None, say: Say) -> list[Choice]:
    """Every schedule of every traversal in `problems` (by traversal), the fastest first, those that do not fit last.

    Each search has `time_limit_s`.
    """
    found = []
    for traversal, problem in problems.items():
        for name, entry in SCHEDULES.items():
            if entry.traversal == traversal:
                say(f"{traversal}: {name}")
                found.append(judge(problem, name, time_limit_s=time_limit_s, workers=workers))
    return sorted(found, key=lambda choice: (choice.schedule is None, choice.per_microbatch_ns))


def tolerance_ns(choice: Choice, growth: float) -> int | None:
    """How much longer every latency across sites may get, in ns, before the makespan of this order grows by more than
    `growth` (0.01: 1 %). None where nothing crosses sites, or latency never matters."""
    assert choice.schedule is not None
    problem, schedule, allowed = choice.problem, choice.schedule, choice.makespan_ns * (1 + growth)

    def fits(more_ns: int) -> bool:
        return simulate(with_link(problem, more_latency_ns=more_ns), schedule).makespan_ns <= allowed

    low, high = 0, max(1, choice.makespan_ns)
    if not any(_crossing(problem)) or fits(high):
        return None
    while high - low > max(1, choice.makespan_ns // 100_000):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def changes(best: Choice, *, time_limit_s: float, workers: int | None, say: Say) -> list[Change]:
    """What single changes would bring, the most helpful first. Each search has `time_limit_s`, and so should `best`."""
    assert best.schedule is not None
    found = []
    for words, problem in neighbours(best.problem):
        say(words)
        names = {best.name, *(n for n in ("cross_ud", "cross_wave") if SCHEDULES[n].traversal == problem.traversal)}
        judged = [judge(problem, name, time_limit_s=time_limit_s, workers=workers) for name in sorted(names)]
        fitting = [choice for choice in judged if choice.schedule is not None]
        found.append(Change(words=words, choice=min(fitting, key=lambda c: c.per_microbatch_ns, default=None)))
    return sorted(found, key=lambda c: float("inf") if c.choice is None else c.choice.per_microbatch_ns)


def neighbours(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems that differ from `problem` in one thing, with that thing in words."""
    limits = problem.activation_limit_bytes
    if any(limit is not None for limit in limits):
        for factor in (1.5, 2):
            more = tuple(None if limit is None else round(limit * factor) for limit in limits)
            yield f"{factor:g} × the activation memory", msgspec.structs.replace(problem, activation_limit_bytes=more)
    yield "2 × the microbatches", msgspec.structs.replace(problem, microbatches=2 * problem.microbatches)
    hops = list(_crossing(problem))
    if any(hop.serialisation_ns for hop in hops):
        yield "2 × the bandwidth across sites", with_link(problem, serialisation=0.5)
    if any(hop.latency_ns for hop in hops):
        yield "half the latency across sites", with_link(problem, latency=0.5)
    yield from _cut_elsewhere(problem)


def with_link(
    problem: Problem, *, latency: float = 1.0, serialisation: float = 1.0, more_latency_ns: int = 0
) -> Problem:
    """`problem` with the latency and serialisation of every message across sites multiplied, and latency added."""

    def changed(hop: Hop, crosses: bool) -> Hop:
        if not crosses:
            return hop
        return msgspec.structs.replace(
            hop,
            latency_ns=round(hop.latency_ns * latency) + more_latency_ns,
            serialisation_ns=round(hop.serialisation_ns * serialisation),
        )

    forward = tuple(changed(hop, problem.crosses_sites("F", k)) for k, hop in enumerate(problem.forward_hops))
    backward = tuple(changed(hop, problem.crosses_sites("D", k + 1)) for k, hop in enumerate(problem.backward_hops))
    return msgspec.structs.replace(problem, forward_hops=forward, backward_hops=backward)


def with_traversal(problem: Problem, traversal: str) -> Problem | None:
    """The same stages and links as a `ud` or `wave`, each stage's work shared evenly by its chunks.

    None where that cannot be said: another traversal, data parallelism, or a single stage.
    """
    if problem.traversal == traversal:
        return problem
    if {problem.traversal, traversal} != {"ud", "wave"} or problem.data_parallel or problem.stages == 1:
        return None
    chunks = 1 if traversal == "ud" else 2
    costs = tuple(tuple(_share(row, chunk, chunks) for chunk in range(chunks)) for row in problem.costs)
    down = range(problem.stages - 1)  # in both traversals, boundary k of the first way leads from stage k to k + 1
    forward = tuple(problem.forward_hops[k] for k in down)
    backward = tuple(problem.backward_hops[k] for k in down)
    if traversal == "wave":  # F turns at the last stage and comes back where D of the first way goes, and so for D
        forward, backward = (*forward, Hop(), *reversed(backward)), (*backward, Hop(), *reversed(forward))
    return msgspec.structs.replace(
        problem, traversal=traversal, chunks=chunks, costs=costs, forward_hops=forward, backward_hops=backward
    )


def _share(row: tuple[BlockCost, ...], chunk: int, chunks: int) -> BlockCost:
    """What one of `chunks` chunks costs when they share the work of a stage; messages stay as large as they are."""
    shared = {
        name: split(sum(getattr(cost, name) for cost in row), chunk, chunks)
        for name in ("forward_ns", "input_grad_ns", "weight_grad_ns", "forward_keep_bytes", "input_grad_release_bytes")
    }
    keep = shared["forward_keep_bytes"]
    release = split(sum(cost.weight_grad_release_bytes for cost in row), chunk, chunks)
    take = max(0, shared["input_grad_release_bytes"] + release - keep)
    return BlockCost(
        **shared,
        input_grad_take_bytes=take,
        weight_grad_release_bytes=keep + take - shared["input_grad_release_bytes"],
        forward_message_bytes=max(cost.forward_message_bytes for cost in row),
        backward_message_bytes=max(cost.backward_message_bytes for cost in row),
    )


def _cut_elsewhere(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The border between two sites a stage earlier or later; the links of the two boundaries change places."""
    if len(set(problem.sites)) != 2 or problem.sites != tuple(sorted(problem.sites)):
        return
    border = problem.sites.index(problem.sites[-1])  # the first stage of the second site
    for moved in (border - 1, border + 1):
        if not 0 < moved < problem.stages:
            continue
        sites = tuple(problem.sites[0] if stage < moved else problem.sites[-1] for stage in range(problem.stages))
        swapped = {
            frozenset((border - 1, border)): (moved - 1, moved),
            frozenset((moved - 1, moved)): (border - 1, border),
        }
        yield (
            f"the sites split {moved} + {problem.stages - moved} stages",
            msgspec.structs.replace(
                problem,
                sites=sites,
                forward_hops=_swap(problem, problem.forward_hops, swapped),
                backward_hops=_swap(problem, problem.backward_hops, swapped),
            ),
        )


def _swap(
    problem: Problem, hops: tuple[Hop, ...], swapped: Mapping[frozenset[int], tuple[int, int]]
) -> tuple[Hop, ...]:
    """`hops` with those of the `swapped` pairs of stages taken from the other pair, direction by direction."""
    pairs = [(problem.place(k)[0], problem.place(k + 1)[0]) for k in range(len(hops))]
    first = dict(zip(pairs, hops, strict=True))
    found = []
    for (here, there), hop in zip(pairs, hops, strict=True):
        other = swapped.get(frozenset((here, there)))
        found.append(hop if other is None else first[other if here < there else other[::-1]])
    return tuple(found)


def _crossing(problem: Problem) -> Iterator[Hop]:
    """The hops across sites."""
    for k in range(problem.positions - 1):
        if problem.crosses_sites("F", k):
            yield problem.forward_hops[k]
            yield problem.backward_hops[k]
