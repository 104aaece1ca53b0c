"""How much work can fit into a memory limit at most: the two fractional knapsacks that every stage bound rests on.

Both are upper bounds on an integer problem, solved greedily by work per byte after the capacity is rounded down to what
the sizes can reach. Exact where the sizes are equal or come in a ratio that fills the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cmp_to_key
from typing import NamedTuple


class Item(NamedTuple):
    """Blocks that each do `work_ns` and hold `size_bytes`; all together do `most_ns`, the last perhaps in part."""

    work_ns: int
    size_bytes: int
    most_ns: int


def most_work_ns(items: Sequence[Item], capacity_bytes: int | None, unit_bytes: int | None = None) -> int:
    """Upper bound on the work of any choice of whole items within the capacity (None: no limit), in ns.

    What is held is a multiple of `unit_bytes` (None: whole items, so of what divides all sizes). Items of size <= 0
    always fit. A negative capacity holds nothing that has a size.
    """
    whole = math.gcd(*(item.size_bytes for item in items))
    return _relaxed(items, capacity_bytes, whole if unit_bytes is None else unit_bytes)


def _relaxed(items: Sequence[Item], capacity_bytes: int | None, unit_bytes: int) -> int:
    """The greedy fractional knapsack; what is held is a multiple of `unit_bytes` (0: nothing has a size)."""
    total = sum(item.most_ns for item in items if capacity_bytes is None or item.size_bytes <= 0)
    sized = [item for item in items if item.size_bytes > 0 and item.work_ns > 0]
    if capacity_bytes is None or not sized:
        return total
    scale = math.prod(item.work_ns for item in sized)  # so that part of a block leaves a whole number
    left = max(0, capacity_bytes) // unit_bytes * unit_bytes * scale
    for work, size, most in sorted(sized, key=cmp_to_key(_less_worth)):
        used = most * size * (scale // work)
        if used > left:
            return total + left * work // (size * scale)  # the rest is worth less per byte
        total += most
        left -= used
    return total


def _less_worth(one: Item, other: Item) -> int:
    """> 0 where `one` does less work per byte than `other`, exactly."""
    return other.work_ns * one.size_bytes - one.work_ns * other.size_bytes


class Pair(NamedTuple):
    """One (stage, chunk) whose D and W may be left over: times in ns, what W and what D + W still hold in bytes, and
    how much work all such D can be."""

    input_grad_ns: int
    weight_grad_ns: int
    weight_grad_bytes: int
    pair_bytes: int
    most_input_grad_ns: int


def most_gradient_work_ns(pairs: Sequence[Pair], count: int, capacity_bytes: int | None, whole: bool = True) -> int:
    """Upper bound on the D and W work that `count` microbatches per chunk can still owe within a memory, in ns.

    A microbatch owes nothing, its W (holding `weight_grad_bytes`), or D and W (holding `pair_bytes`). This is the
    linear relaxation of a multiple-choice knapsack: of a chunk, either W alone is worth more per byte than what D adds
    to it, or D and W together are worth more than W alone. `whole`: W is not cut in pieces.
    """
    items: list[Item] = []
    unit = math.gcd(*(size for pair in pairs for size in (pair.weight_grad_bytes, pair.pair_bytes))) if whole else 1
    for d, w, after_d, before_d, most in pairs:
        step, most_d = before_d - after_d, min(most, count * d)
        if step > 0 and w * step >= d * after_d:
            items += [Item(w, after_d, count * w), Item(d, step, most_d)]
        else:
            paired = -(-most_d * w // d) if d else count * w  # W work of the pairs, rounded up
            items += [
                Item(d + w, before_d, most_d + paired),
                Item(w, after_d, count * w - (most_d * w // d if d else 0)),
            ]
    return _relaxed(items, capacity_bytes, unit)


def served_ns(time_ns: int, first_ns: int, step_ns: int, size_ns: int, most: int) -> int:
    """Work that `most` blocks of `size_ns`, the first from `first_ns` on and each a step later, can do by a time."""
    whole, rest = divmod(max(0, time_ns - first_ns), max(step_ns, size_ns, 1))
    return min(most * size_ns, whole * size_ns + min(rest, size_ns))
