"""V-Half and V-Min: the order of F and D in a `wave` at a half and a third of the memory of 1F1B.

A building block gives each of a microbatch's four F and D a slot on every stage, all blocks one slot long; microbatches
follow every six slots, and W fills slots in between. What warm-up and cool-down leave empty is then filled by moving
blocks forward, without more memory. Block times play no part here; `weight_grads` places W by them in the end.
Source: Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS'24.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

PERIOD = 6  # slots a microbatch takes on a stage: F, D and W of two chunks
F0, F1, D1, D0, W = range(5)  # lines of a stage, in the order a microbatch meets them; W of either chunk

CODES = (0, 1, 3, 2)  # of F0, F1, D1, D0: kind * 2 + chunk

Slots = list[list[list[int]]]  # [stage][line][k]


class Skeleton(NamedTuple):
    """Per stage the order of F and D, as kind * chunks + chunk with F 0 and D 1; the most chunks' activations held."""

    lines: tuple[tuple[int, ...], ...]
    peak_chunks: int


def v_half_block(stages: int) -> list[tuple[int, int, int, int]]:
    """Slots of F0, F1, D1, D0 per stage; activations of a microbatch live for half as long as in 1F1B."""
    shift = 3 if stages % 2 == 0 else 0  # keeps the slots of a stage apart, modulo the period
    return [
        (2 * s, 3 * stages - s - 2, 3 * stages + shift + 2 * s - 1, 6 * stages + shift - s - 2) for s in range(stages)
    ]


def v_min_block(stages: int) -> list[tuple[int, int, int, int]]:
    """Slots of F0, F1, D1, D0 per stage: every pass moves on by one slot a stage, the least memory there is."""
    shift = 2 if stages % 3 == 0 else 0
    return [(s, 2 * stages - s - 1, 2 * stages + shift + s, 4 * stages + shift - s - 1) for s in range(stages)]


def skeleton(block: list[tuple[int, int, int, int]], microbatches: int) -> Skeleton:
    """The block, repeated and pulled together."""
    slots = [[[slot + PERIOD * k for k in range(microbatches)] for slot in row] for row in block]
    for rows in slots:
        rows.append(_weight_grad_slots(rows))
    peak = max(max(_held(rows)) for rows in slots)
    _move_forward(slots, microbatches, peak)
    order = (sorted((slot, line) for line in range(W) for slot in rows[line]) for rows in slots)
    return Skeleton(tuple(tuple(CODES[line] for _, line in row) for row in order), peak)


def _weight_grad_slots(rows: list[list[int]]) -> list[int]:
    """W follow their D, first come first served, in the slots that F and D leave."""
    taken = {slot for row in rows for slot in row}
    slots, free = [], 0
    for slot in sorted(rows[D1] + rows[D0]):
        free = max(free, slot + 1)
        while free in taken:
            free += 1
        slots.append(free)
        free += 1
    return slots


def _held(rows: list[list[int]]) -> list[int]:
    """Chunks held after each slot: F takes one, W returns one."""
    change = dict.fromkeys(rows[F0] + rows[F1], 1) | dict.fromkeys(rows[W], -1)
    held, now = [], 0
    for slot in range(max(map(max, rows)) + 1):
        now += change.get(slot, 0)
        held.append(now)
    return held


def _move_forward(slots: Slots, microbatches: int, peak: int) -> None:
    """In warm-up and cool-down every block moves to the first free slot its inputs and the memory allow.

    Warm-up ends with the first D of chunk 0 on stage 0, cool-down begins with the last F of chunk 0 there.
    """
    taken = [{slot for row in rows for slot in row} for rows in slots]
    held = [_held(rows) for rows in slots]
    over: list[list[int]] = [[] for _ in slots]  # slots of the D that are placed, sorted
    blocks = [
        (slot, stage, line, k)
        for stage, rows in enumerate(slots)
        for line, row in enumerate(rows)
        for k, slot in enumerate(row)
    ]
    first, last = slots[0][D0][0], slots[0][F0][microbatches - 1]
    for slot, stage, line, k in sorted(blocks):
        place = slot
        if slot < first or (slot, stage) > (last, 0):
            earliest = _earliest(slots, over[stage], stage, line, k)
            place = _free_slot(taken[stage], held[stage], earliest, slot, peak if line in (F0, F1) else None)
        if place != slot:
            slots[stage][line][k] = place
            taken[stage].remove(slot)
            taken[stage].add(place)
            change = {F0: 1, F1: 1, W: -1}.get(line, 0)
            for between in range(place, slot) if change else ():
                held[stage][between] += change
        if line in (D1, D0):
            insort(over[stage], place)


def _earliest(slots: Slots, over: list[int], stage: int, line: int, k: int) -> int:
    """The slot after the block's inputs: the stage before it in the wave, the line before it, its own D for a W."""
    rows = slots[stage]
    before = [-1]
    if line == W:
        before.append(over[k])
    if line in (F0, D1) and stage > 0:
        before.append(slots[stage - 1][line][k])
    if line in (F1, D0) and stage + 1 < len(slots):
        before.append(slots[stage + 1][line][k])
    if line in (F1, D1, D0):
        before.append(rows[line - 1][k])
    if k > 0:
        before.append(rows[line][k - 1])
    return max(before) + 1


def _free_slot(taken: set[int], held: list[int], earliest: int, slot: int, peak: int | None) -> int:
    """The first free slot in [earliest, slot) from which one more chunk may be held until `slot`; else `slot`."""
    if peak is not None:
        full = (between for between in range(slot - 1, earliest - 1, -1) if held[between] >= peak)
        earliest = next(full, earliest - 1) + 1
    return next((free for free in range(earliest, slot) if free not in taken), slot)
