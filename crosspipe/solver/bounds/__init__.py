"""How short can any schedule of a Problem be? A proven lower bound on the makespan, with the reason in words.

The bounds hold for every valid schedule of the Problem, searched or static, with whole, pieced or fused backward. They
come from closed formulas over one stage or one wire at a time; `docs/bounds.md` has the proofs. No schedule is needed.
"""

from __future__ import annotations

import msgspec

from crosspipe.problem import Hop, Problem
from crosspipe.solver.bounds.paths import Paths, paths_of
from crosspipe.solver.bounds.stage import StageBound, stage_bounds
from crosspipe.solver.bounds.wire import WireBound, wire_bounds
from crosspipe.solver.bounds.words import milliseconds, stage_words, wire_words

__all__ = ["Bound", "lower_bound"]


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No schedule is shorter than `value_ns`. `proven_by` names the bound, `explanation` says in words what binds."""

    value_ns: int
    proven_by: str
    explanation: str
    assumptions: tuple[str, ...] = ()


class PathBound(msgspec.Struct, frozen=True, kw_only=True):
    """One microbatch through all positions and back, and what follows its gradients."""

    value_ns: int


def lower_bound(problem: Problem) -> Bound:
    """The largest bound known for this problem, and what memory or bandwidth would do to it.

    Raises Infeasible where a stage cannot hold even one microbatch.
    """
    problem.check_memory_floor()
    best = _best(problem)
    if isinstance(best, StageBound):
        name, words = "stage bound", stage_words(best)
    elif isinstance(best, WireBound):
        name, words = "wire bound", wire_words(best)
    else:
        name, words = "single microbatch", f"one microbatch alone takes {milliseconds(best.value_ns)} there and back"
    return Bound(
        value_ns=best.value_ns,
        proven_by=name,
        explanation="; ".join((words, *_what_would_help(problem, best.value_ns))),
        assumptions=_assumptions(problem),
    )


def _best(problem: Problem) -> StageBound | WireBound | PathBound:
    paths = paths_of(problem)
    bounds: list[StageBound | WireBound | PathBound] = [_path_bound(paths)]
    bounds += stage_bounds(problem, paths)
    bounds += wire_bounds(problem, paths, max(bound.value_ns for bound in bounds))
    return max(bounds, key=lambda bound: bound.value_ns)


def _path_bound(paths: Paths) -> PathBound:
    last = paths.positions - 1
    return PathBound(value_ns=paths.head[last] + paths.forward[last] + paths.input_grad[last] + paths.tail[last])


def _what_would_help(problem: Problem, value_ns: int) -> list[str]:
    """The bound of the same problem with one more microbatch of memory per stage, and with twice the bandwidth."""
    words = []
    limits = tuple(
        None if limit is None else limit + sum(cost.forward_keep_bytes for cost in row)
        for limit, row in zip(problem.activation_limit_bytes, problem.costs, strict=True)
    )
    changes: list[tuple[str, Problem]] = []
    if limits != problem.activation_limit_bytes:
        more = msgspec.structs.replace(problem, activation_limit_bytes=limits)
        changes.append(("one more microbatch of memory per stage", more))
    forward, backward = (tuple(_faster(hop) for hop in hops) for hops in (problem.forward_hops, problem.backward_hops))
    if (forward, backward) != (problem.forward_hops, problem.backward_hops):
        more = msgspec.structs.replace(problem, forward_hops=forward, backward_hops=backward)
        changes.append(("twice the bandwidth", more))
    for what, changed in changes:
        less = value_ns - _best(changed).value_ns
        words.append(f"{what} would lower this bound by {milliseconds(less)}" if less else f"{what} would not lower it")
    return words


def _faster(hop: Hop) -> Hop:
    return msgspec.structs.replace(hop, serialisation_ns=-(-hop.serialisation_ns // 2))


def _assumptions(problem: Problem) -> tuple[str, ...]:
    shortens = any(cost.backward_ns < cost.input_grad_ns + cost.weight_grad_ns for row in problem.costs for cost in row)
    return ("backward work is counted at the fused B, which is shorter than D and W",) if shortens else ()
