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
    """Up to `most` blocks, the last of them in part, that each do `work_ns` and hold `size_bytes`."""

    work_ns: int
    size_bytes: int
    most: Fraction | int


def most_work_ns(items: Sequence[Item], capacity_bytes: int | None) -> int:
    """Upper bound on the work of any choice of whole items within the capacity (None: no limit), in ns.

    Items of size <= 0 always fit. A negative capacity holds nothing that has a size.
    """
    return _relaxed(items, capacity_bytes, math.gcd(*(item.size_bytes for item in items)))


def _relaxed(items: Sequence[Item], capacity_bytes: int | None, unit_bytes: int) -> int:
    """The greedy fractional knapsack; what is held is a multiple of `unit_bytes` (0: nothing has a size)."""
    free = sum(
        (Fraction(i.work_ns * i.most) for i in items if capacity_bytes is None or i.size_bytes <= 0), Fraction(0)
    )
    sized = [item for item in items if item.size_bytes > 0 and item.work_ns > 0]
    if capacity_bytes is None or not sized:
        return math.floor(free)
    left: Fraction | int = max(0, capacity_bytes) // unit_bytes * unit_bytes
    total = free
    for item in sorted(sized, key=lambda item: Fraction(item.work_ns, item.size_bytes), reverse=True):
        taken = Fraction(min(item.most * item.size_bytes, left))
        total += item.work_ns * taken / item.size_bytes
        left -= taken
    return math.floor(total)


class Pair(NamedTuple):
    """One (stage, chunk) whose D and W may be left over: times in ns, what W and what D + W still hold in bytes, how
    many D can be."""

    input_grad_ns: int
    weight_grad_ns: int
    weight_grad_bytes: int
    pair_bytes: int
    most_input_grads: Fraction | int


def most_gradient_work_ns(pairs: Sequence[Pair], count: int, capacity_bytes: int | None, whole: bool = True) -> int:
    """Upper bound on the D and W work that `count` microbatches per chunk can still owe within a memory, in ns.

    A microbatch owes nothing, its W (holding `weight_grad_bytes`), or D and W (holding `pair_bytes`). This is the
    linear relaxation of a multiple-choice knapsack: of a chunk, either W alone is worth more per byte than what D adds
    to it, or D and W together are worth more than W alone. `whole`: W is not cut in pieces.
    """
    items: list[Item] = []
    unit = math.gcd(*(size for pair in pairs for size in (pair.weight_grad_bytes, pair.pair_bytes))) if whole else 1
    for d, w, after_d, before_d, most in pairs:
        step, most_pairs = before_d - after_d, min(most, count)
        if step > 0 and w * step >= d * after_d:
            items += [Item(w, after_d, count), Item(d, step, most_pairs)]
        else:
            items += [Item(d + w, before_d, most_pairs), Item(w, after_d, count - most_pairs)]
    return _relaxed(items, capacity_bytes, unit)


def served_by(time_ns: int, first_ns: int, step_ns: int, size_ns: int, most: int) -> Fraction:
    """How many of `most` blocks of `size_ns`, the first from `first_ns` on and each a step later, can run by a time."""
    if size_ns == 0:
        return Fraction(most)
    whole, rest = divmod(max(0, time_ns - first_ns), max(step_ns, size_ns))
    return min(Fraction(most), whole + Fraction(min(rest, size_ns), size_ns))
