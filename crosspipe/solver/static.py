"""Static families with a fixed order: GPipe, 1F1B, ZB-H1 and interleaved 1F1B.

Each function gives the order of every stage from the counts alone; block times and links play no part. The orders are
those PyTorch's pipelining generates (GPipe: Huang et al. 2019; 1F1B: Narayanan et al. 2019; interleaved: Narayanan et
al. 2021; ZB-H1: Qi et al., ICLR'24). Families that are generated from the block times are in `zero_bubble`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from crosspipe.errors import FieldError
from crosspipe.problem import Problem
from crosspipe.schedule import Block

Orders = tuple[tuple[Block, ...], ...]


def gpipe(problem: Problem) -> Orders:
    """All F, then all fused B, in the order of the microbatches; every microbatch is in memory at once."""
    microbatches = range(problem.microbatches)
    row = [Block("F", 0, m) for m in microbatches] + [Block("B", 0, m) for m in microbatches]
    return (tuple(row),) * problem.stages


def one_f_one_b(problem: Problem) -> Orders:
    """1F1B with fused B: stage s runs p - s forwards, then B and F in turn; holds at most p - s microbatches."""
    return tuple(_one_f_one_b(problem, stage, delay=None) for stage in range(problem.stages))


def zbh1(problem: Problem) -> Orders:
    """ZB-H1: 1F1B with split backward where stage s runs W of a microbatch s backwards late, filling its cool-down.

    Holds at most p microbatches on every stage, whatever D and W release.
    """
    return tuple(_one_f_one_b(problem, stage, delay=stage) for stage in range(problem.stages))


def _one_f_one_b(problem: Problem, stage: int, delay: int | None) -> tuple[Block, ...]:
    """The 1F1B order of a stage; with a `delay`, B is split and W follows that many D behind (None: fused B)."""
    count = problem.microbatches
    warm_up = min(count, problem.stages - stage)
    order = [Block("F", 0, m) for m in range(warm_up)]
    for m in range(count):
        order.append(Block("B" if delay is None else "D", 0, m))
        if delay is not None and m >= delay:
            order.append(Block("W", 0, m - delay))
        if m + warm_up < count:
            order.append(Block("F", 0, m + warm_up))
    if delay is not None:
        order += [Block("W", 0, m) for m in range(max(0, count - delay), count)]
    return tuple(order)


def interleaved_1f1b(problem: Problem) -> Orders:
    """Interleaved 1F1B with fused B: microbatches in rounds, every round through all chunks.

    Allows any microbatch count up to twice the stages, and above that multiples of the number of rounds
    (microbatches // stages); FieldError otherwise.
    """
    stages, count, chunks = problem.stages, problem.microbatches, problem.chunks
    rounds = max(1, count // stages)
    if count % rounds:
        below = next(c for c in range(count, 0, -1) if c % max(1, c // stages) == 0)
        above = next(c for c in range(count, 2 * count + stages) if c % max(1, c // stages) == 0)
        raise FieldError(
            "microbatches",
            count,
            f"interleaved_1f1b runs them in {rounds} equal rounds of at least {stages}",
            f"use {below} or {above}",
        )
    width = count // rounds

    def visits(kind: str) -> Iterator[Block]:
        for start in range(0, count, width):
            for chunk in range(chunks) if kind == "F" else reversed(range(chunks)):
                yield from (Block(kind, chunk, m) for m in range(start, start + width))

    orders = []
    for stage in range(stages):
        total = count * chunks
        warm_up = min(total, (chunks - 1) * width + 2 * (stages - 1 - stage))
        forwards, backwards = visits("F"), visits("B")
        order = [next(forwards) for _ in range(warm_up)]
        for _ in range(total - warm_up):
            order += [next(forwards), next(backwards)]
        orders.append((*order, *backwards))
    return tuple(orders)


FIXED_ORDERS: dict[str, tuple[str, Callable[[Problem], Orders]]] = {
    "gpipe": ("ud", gpipe),
    "1f1b": ("ud", one_f_one_b),
    "zbh1": ("ud", zbh1),
    "interleaved_1f1b": ("loop", interleaved_1f1b),
}  # name -> traversal, orders
