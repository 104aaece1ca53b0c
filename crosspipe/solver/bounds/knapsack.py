"""How much work can fit into a memory limit at most: the two fractional knapsacks that every stage bound rests on.

Both are upper bounds on an integer problem, solved greedily by work per byte after the capacity is rounded down to what
the sizes can reach. Exact where the sizes are equal or come in a ratio that fills the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple


class Item(NamedTuple):
    """Up to `count` blocks that each do `work_ns` and hold `size_bytes`."""

    work_ns: int
    size_bytes: int
    count: int


def most_work_ns(items: Sequence[Item], capacity_bytes: int | None) -> int:
    """Upper bound on the work of any choice of whole items within the capacity (None: no limit), in ns.

    Items of size <= 0 always fit. A negative capacity holds nothing that has a size.
    """
    return _relaxed(items, capacity_bytes, math.gcd(*(item.size_bytes for item in items)))


def _relaxed(items: Sequence[Item], capacity_bytes: int | None, unit_bytes: int) -> int:
    """The greedy fractional knapsack; what is held is a multiple of `unit_bytes` (0: nothing has a size)."""
    free = sum(item.work_ns * item.count for item in items if capacity_bytes is None or item.size_bytes <= 0)
    sized = [item for item in items if item.size_bytes > 0 and item.work_ns > 0]
    if capacity_bytes is None or not sized:
        return free
    left = max(0, capacity_bytes) // unit_bytes * unit_bytes
    total = Fraction(free)
    for item in sorted(sized, key=lambda item: Fraction(item.work_ns, item.size_bytes), reverse=True):
        taken = min(item.count * item.size_bytes, left)
        total += Fraction(item.work_ns * taken, item.size_bytes)
        left -= taken
    return math.floor(total)


class Pair(NamedTuple):
    """One (stage, chunk) whose D and W may be left over: times in ns, what W and what D + W still hold in bytes."""

    input_grad_ns: int
    weight_grad_ns: int
    weight_grad_bytes: int
    pair_bytes: int


def most_gradient_work_ns(pairs: Sequence[Pair], count: int, capacity_bytes: int | None, whole: bool = True) -> int:
    """Upper bound on the D and W work that `count` microbatches per chunk can still owe within a memory, in ns.

    A microbatch owes nothing, its W (holding `weight_grad_bytes`), or D and W (holding `pair_bytes`). This is the
    linear relaxation of a multiple-choice knapsack: each chunk's two steps are merged into one where the second is
    worth more per byte than the first. `whole`: W is not cut in pieces.
    """
    items: list[Item] = []
    unit = math.gcd(*(size for pair in pairs for size in (pair.weight_grad_bytes, pair.pair_bytes))) if whole else 1
    for d, w, after_d, before_d in pairs:
        step = before_d - after_d
        # W alone first, then D on top, if that is the order of worth per byte; else both together
        if step > 0 and w * step >= d * after_d:
            items += [Item(w, after_d, count), Item(d, step, count)]
        else:
            items.append(Item(d + w, before_d, count))
    return _relaxed(items, capacity_bytes, unit)
