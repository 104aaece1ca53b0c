"""Why a cell of Table 5 is not the published number: computed from the cell's Problem, so that it stays true.

Slower than published: what the bound leaves open, and what another unit of the memory limit would give. Faster: what
was there without delay already, and how long a message would have to occupy the wire for the published value. No script
of its own; `table5.py` prints the sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from crosspipe.errors import Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule, simulate
from crosspipe.solver import solve
from crosspipe.solver.advice import with_link

SLOWER, FASTER = 1.02, 0.95  # ours over published, beyond which a cell is explained
SEARCH_S = 8.0
EXACT = {"ud": "cross_ud", "wave": "cross_wave"}
GIB = 2**30


class Best(NamedTuple):
    """The best schedule of a cell: its Problem, times in s per microbatch, and the Problem by traversal."""

    schedule: Schedule
    problem: Problem
    bound_s: float
    problems: dict[str, Problem]
    published_s: float
    without_delay: float | None  # ours over published in this case's cell without delay

    @property
    def ours_s(self) -> float:
        """Seconds per microbatch."""
        return per_microbatch_s(self.problem, self.schedule)


def per_microbatch_s(problem: Problem, schedule: Schedule) -> float:
    """Simulated makespan over microbatches, in s."""
    return simulate(problem, schedule).makespan_ns / problem.microbatches / 1e9


def explain(best: Best, memory_microbatches: float) -> str | None:
    """The cause in sentences; None where ours is near the published value, or nothing tells."""
    ratio = best.ours_s / best.published_s
    if ratio > SLOWER:
        return " ".join(_slower(best, memory_microbatches)) or None
    if ratio < FASTER:
        return " ".join(_faster(best)) or None
    return None


def _slower(best: Best, memory_microbatches: float) -> Iterator[str]:
    above = best.bound_s > best.published_s
    open_words = "above the published value: the paper's limit is another" if above else "so the search may miss some"
    yield f"No order of {best.problem.traversal} under this limit is faster than {best.bound_s:.4f} s, {open_words}."
    whole = {t: with_limit(p, round(memory_microbatches * whole_bytes(p))) for t, p in best.problems.items()}
    here, there = (p.activation_limit_bytes[0] for p in (best.problem, whole[best.problem.traversal]))
    if here is None or there is None or there <= here:
        return
    tried = {EXACT[t]: solve(p, EXACT[t], time_limit_s=SEARCH_S, hint=_same(best, t)) for t, p in whole.items()}
    times = {name: per_microbatch_s(whole[found.traversal], found) for name, found in tried.items()}
    name = min(times, key=lambda n: times[n])
    yield (
        f"Memory unit: {memory_microbatches:g} microbatches recomputed, and what one D takes, are {here / GIB:.1f} GiB "
        f"a stage here; read as {memory_microbatches:g} whole ones, {there / GIB:.1f} GiB as in case 1, {name} takes "
        f"{times[name]:.4f} s, {times[name] / best.published_s:.3f} of the published value."
    )
    yield from _static_there(whole)


def _static_there(whole: dict[str, Problem]) -> Iterator[str]:
    if "ud" in whole:
        try:
            static = solve(whole["ud"], "zbh1", time_limit_s=1)
        except Infeasible:
            return
        yield f"There zbh1, which the paper ran, fits too: {per_microbatch_s(whole['ud'], static):.4f} s."


def _same(best: Best, traversal: str) -> Schedule | None:
    return best.schedule if best.problem.traversal == traversal else None


def _faster(best: Best) -> Iterator[str]:
    ratio, free = best.ours_s / best.published_s, best.without_delay
    if free is not None:
        yield (
            f"Without delay ours is {free:.3f} of the published value in this case: the delay makes the "
            f"{'rest' if free < 1 else 'difference'}, a factor of {ratio / free:.3f}."
        )
    wires = {hop.serialisation_ns for hop in best.problem.forward_hops if hop.wire is not None}
    given = max(wires, default=0) / best.problem.forward_reference_ns()
    needed = wire_for(best, best.published_s * (free or 1.0))
    if given and needed is not None:
        yield (
            f"The model comes to the published time where a message occupies the wire for at least {needed:.2f} T_F, "
            f"not {given:.3g}: messages in a row would pass at a lower rate there than one alone."
        )


def wire_for(best: Best, target_s: float) -> float | None:
    """T_bw/T_F at which what is tried here takes `target_s` per microbatch: the order kept, and the greedy's.

    A better order would need a longer message still, so it is a lower bound. None where even 4 times is not enough.
    """
    reference = best.problem.forward_reference_ns()
    given = max(hop.serialisation_ns for hop in best.problem.forward_hops) / reference

    def takes_s(factor: float) -> float:
        problem = with_link(best.problem, serialisation=factor)
        kept = per_microbatch_s(problem, best.schedule)
        if problem.traversal != "ud":
            return kept
        return min(kept, per_microbatch_s(problem, solve(problem, "cross_ud_sub", time_limit_s=1)))

    low, high = 1.0, 4.0
    if takes_s(high) < target_s:
        return None
    while high - low > 0.002:
        middle = (low + high) / 2
        low, high = (middle, high) if takes_s(middle) < target_s else (low, middle)
    return low * given


def with_limit(problem: Problem, limit_bytes: int | None) -> Problem:
    """`problem` with another activation limit on every stage; None: no limit."""
    return msgspec.structs.replace(problem, activation_limit_bytes=(limit_bytes,) * problem.stages)


def whole_bytes(problem: Problem) -> int:
    """What one microbatch weighs on the fullest stage before anything of it is left out to be computed again."""
    return max(sum(c.forward_keep_bytes + c.input_grad_take_bytes for c in row) for row in problem.costs)
