"""ZB-H2, ZB-V, V-Half and V-Min, generated from the block times as their authors do.

The order of F and D on a stage follows from the family and the counts alone; W goes where the block times leave room
(`weight_grads`), by whichever rule is best on this problem. Sources: Qi et al., Zero Bubble Pipeline Parallelism,
ICLR'24 (ZB-H2); Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS'24 (ZB-V, V-Half, V-Min).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from crosspipe.problem import Problem
from crosspipe.schedule import Block
from crosspipe.solver.building_blocks import Skeleton, skeleton, v_half_block, v_min_block
from crosspipe.solver.static import Orders

if TYPE_CHECKING:  # numba loads only where something is generated
    from crosspipe.schedule.kernel import Ints

F, D = 0, 1  # of a `ud` stage: kind * chunks + chunk
F0, F1, D0, D1 = range(4)  # of a `wave` stage
BEFORE = {F1: F0, D1: F1, D0: D1}  # a microbatch's way over a `wave` stage


def zbh2(problem: Problem) -> Orders:
    """ZB-H2: 1F1B with twice the warm-up, at up to twice its memory; W fills what the longer cool-down leaves."""
    p, n = problem.stages, problem.microbatches
    lines = []
    for stage in range(p):
        warm_up = min(n, 2 * (p - stage) - 1)
        row = [F] * warm_up
        for m in range(n):
            row += [D] + [F] * (m + warm_up < n)
        lines.append(tuple(row))
    return _placed(problem, Skeleton(tuple(lines), 2 * p))


def zbv(problem: Problem) -> Orders:
    """ZB-V: there and back over the stages, at the memory of 1F1B; no bubble where F, D and W are equal."""
    return _placed(problem, _v_skeleton(problem.stages, problem.microbatches))


def v_half(problem: Problem) -> Orders:
    """V-Half: ZB-V at about half of its memory, for a little more time."""
    return _placed(problem, skeleton(v_half_block(problem.stages), problem.microbatches))


def v_min(problem: Problem) -> Orders:
    """V-Min: the least memory there is, about a third of that of 1F1B."""
    return _placed(problem, skeleton(v_min_block(problem.stages), problem.microbatches))


GENERATED_ORDERS: dict[str, tuple[str, Callable[[Problem], Orders]]] = {
    "zbh2": ("ud", zbh2),
    "zbv": ("wave", zbv),
    "v_half": ("wave", v_half),
    "v_min": ("wave", v_min),
}  # name -> traversal, orders


def _v_skeleton(stages: int, microbatches: int) -> Skeleton:
    """The order of ZB-V: as many F as memory holds, then D and F in turn, of chunk 1 (F) and 0 (D) where they can."""
    n = microbatches
    rows: list[list[int]] = [[] for _ in range(stages)]
    count = [[0] * 4 for _ in range(stages)]  # blocks placed, per stage and line

    def place(stage: int, line: int) -> None:
        rows[stage].append(line)
        count[stage][line] += 1

    def can(stage: int, line: int) -> bool:
        """Whether the inputs of the stage's next block of `line` are placed."""
        k = count[stage][line]
        if k == n or (line in BEFORE and count[stage][BEFORE[line]] <= k):
            return False
        before = stage - 1 if line in (F0, D1) else stage + 1
        return not 0 <= before < stages or count[before][line] > k

    for stage in range(stages):
        for _ in range(min(n, 2 * (stages - stage) - 1)):
            place(stage, F0)
    for stage in reversed(range(stages)):
        for line in (F1, F0) * stages:
            may = count[stage][F1] < count[stage][F0] if line == F1 else count[stage][F0] < n
            if may and len(rows[stage]) < 2 * stages:
                place(stage, line)
    while any(len(row) < 4 * n for row in rows):
        back = [can(stage, D0) or count[stage][D1] == n for stage in range(stages)]
        for stage in reversed(range(stages)):
            if back[stage] and can(stage, D0):
                place(stage, D0)
        for stage in range(stages):
            if not back[stage] and can(stage, D1):
                place(stage, D1)
        for stage in range(stages):
            if can(stage, F1):
                place(stage, F1)
            elif can(stage, F0):
                place(stage, F0)
    return Skeleton(tuple(tuple(row) for row in rows), 2 * stages)


def _placed(problem: Problem, frame: Skeleton) -> Orders:
    """The best order over all rules for W, with an eye to the delays of the links or to the block times alone."""
    from crosspipe.schedule.kernel import compile_problem, evaluate
    from crosspipe.solver.weight_grads import RULES, encoded, with_weight_grads

    compiled, chunks = compile_problem(problem), problem.chunks
    nothing = np.zeros_like(compiled.latency)
    blind = compiled._replace(latency=nothing, serialisation=nothing)
    lines = np.array(frame.lines, dtype=np.int64)
    limits = []
    for row, limit in zip(problem.costs, problem.activation_limit_bytes, strict=True):
        family = -(-frame.peak_chunks * sum(cost.forward_keep_bytes for cost in row) // chunks)
        limits.append(family if limit is None else min(limit, family))
    found: list[tuple[int, int, int, Ints]] = []
    for view in (compiled, blind) if compiled.latency.any() or compiled.serialisation.any() else (blind,):
        for rule in RULES:
            order = with_weight_grads(view, lines, np.array(limits, dtype=np.int64), rule)
            makespan, peak = evaluate(compiled, encoded(compiled, order))
            over = sum(
                limit is not None and need > limit
                for need, limit in zip(peak.tolist(), problem.activation_limit_bytes, strict=True)
            )
            found.append((over, makespan, len(found), order))
    return _blocks(min(found)[3].tolist(), chunks)


def _blocks(rows: list[list[int]], chunks: int) -> Orders:
    names = [(kind, chunk) for kind in "FDW" for chunk in range(chunks)]
    orders = []
    for row in rows:
        count = [0] * len(names)
        blocks = []
        for line in row:
            kind, chunk = names[line]
            blocks.append(Block(kind, chunk, count[line]))
            count[line] += 1
        orders.append(tuple(blocks))
    return tuple(orders)
