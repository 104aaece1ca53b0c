"""How short can any schedule of a Problem be? A proven lower bound on the makespan, with the reason in words.

The bounds hold for every valid schedule of the Problem, searched or static, with whole, pieced or fused backward. They
come from closed formulas over one stage or one wire at a time; `docs/bounds.md` has the proofs. No schedule is needed.
"""

from __future__ import annotations

import msgspec

from crosspipe.problem import Problem
from crosspipe.solver.bounds.paths import Paths, paths_of


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No schedule is shorter than `value_ns`. `proven_by` names the bound, `explanation` says in words what binds."""

    value_ns: int
    proven_by: str
    explanation: str
    assumptions: tuple[str, ...] = ()


def lower_bound(problem: Problem) -> Bound:
    """The largest of all bounds known for this problem.

    Raises Infeasible where a stage cannot hold even one microbatch.
    """
    problem.check_memory_floor()
    paths = paths_of(problem)
    return max((_single_microbatch(paths), *_stage_work(problem, paths)), key=lambda bound: bound.value_ns)


def _single_microbatch(paths: Paths) -> Bound:
    """One microbatch up to the last position and back, and what follows its gradients."""
    last = paths.positions - 1
    value = paths.head[last] + paths.forward[last] + paths.input_grad[last] + paths.tail[last]
    words = f"one microbatch alone needs {value / 1e6:.6g} ms to go through all positions and back"
    return Bound(value_ns=value, proven_by="single microbatch", explanation=words)


def _stage_work(problem: Problem, paths: Paths) -> list[Bound]:
    """Per stage: its earliest possible start, all its blocks, the shortest reduction after its last block."""
    bounds = []
    for stage in range(problem.stages):
        here = [problem.position(stage, chunk) for chunk in range(problem.chunks)]
        head = min(paths.head[p] for p in here)
        block = sum(paths.forward[p] + paths.input_grad[p] + paths.weight_grad[p] for p in here)
        after = min(paths.reduce[p] for p in here)
        work = problem.microbatches * block
        value = head + work + after
        words = f"stage {stage} works {work / 1e6:.6g} ms and cannot start before {head / 1e6:.6g} ms"
        bounds.append(Bound(value_ns=value, proven_by="stage work", explanation=words))
    return bounds
