"""Schedules for tests that no solver made: a plain one for every traversal, and random valid ones."""

from __future__ import annotations

import random

from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule


def schedule_of(problem: Problem, orders: list[list[Block]], **fields: object) -> Schedule:
    return Schedule(
        name="test",
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        orders=tuple(tuple(order) for order in orders),
        **fields,
    )


def random_schedule(problem: Problem, seed: int, *, fused: bool = False, pieces: int = 1) -> Schedule:
    """Lets a random stage run a random block whose inputs are there, until all is done."""
    rng = random.Random(seed)
    orders: list[list[Block]] = [[] for _ in range(problem.stages)]
    done: set[tuple[str, int, int]] = set()
    todo = {
        (kind, position, mb, piece)
        for position in range(problem.positions)
        for mb in range(problem.microbatches)
        for kind in ("F", "B" if fused else "D", "" if fused else "W")
        for piece in range(pieces if kind == "W" else 1)
        if kind
    }

    def ready(item: tuple[str, int, int, int]) -> bool:
        kind, position, mb, _ = item
        if kind == "F":
            return position == 0 or ("F", position - 1, mb) in done
        if kind == "W":
            return ("D", position, mb) in done
        last = position == problem.positions - 1
        return ("F", position, mb) in done and (last or ("D", position + 1, mb) in done)

    while todo:
        item = rng.choice(sorted(filter(ready, todo)))
        kind, position, mb, piece = item
        todo.remove(item)
        if kind != "W":
            done.add(("D" if kind == "B" else kind, position, mb))
        stage, chunk = problem.place(position)
        orders[stage].append(Block(kind, chunk, mb, piece, pieces if kind == "W" else 1))
    return schedule_of(problem, orders)
