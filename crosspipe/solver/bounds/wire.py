"""The bound of one wire: its messages one after another, behind the first that can be ready, before what must follow.

Binds where serialisation is large against the blocks. A wire may be shared by several boundaries, directions of
different chunks and DP messages; every subset of its message classes bounds the makespan. Proofs: `docs/bounds.md`.
"""

from __future__ import annotations

import msgspec

from crosspipe.problem import Problem
from crosspipe.solver.bounds.messages import MessageClass, message_classes
from crosspipe.solver.bounds.paths import Paths
from crosspipe.solver.bounds.tail import most_conflict_ns, tail_conflict_ns


class WireBound(msgspec.Struct, frozen=True, kw_only=True):
    """`value_ns` = first message ready + `busy_ns` + least time after the last + tail conflict, over what binds."""

    wire: str
    value_ns: int
    ready_ns: int
    busy_ns: int
    after_ns: int
    tail_ns: int
    messages: int


def wire_bounds(problem: Problem, paths: Paths, floor_ns: int = 0) -> list[WireBound]:
    """One bound per wire; O(classes^2) each. Wires whose bound cannot pass `floor_ns` may be left with less than known.

    For any set of classes: the wire starts none of their messages before the earliest `ready`, needs the sum of their
    serialisations, and after the last of them everything that must follow it. The best set is {ready >= x, after >= y}
    for some x and y, so those are enough. The tail conflict of that set comes on top.
    """
    bounds = []
    for wire, classes in message_classes(problem, paths).items():
        sets = []
        for ready in {c.ready_ns for c in classes}:
            late = sorted((c for c in classes if c.ready_ns >= ready), key=lambda c: -c.after_ns)
            sets += [(ready, late[:i]) for i in range(1, len(late) + 1)]
        best = max((_wire_bound(wire, *some) for some in sets), key=lambda bound: bound.value_ns)
        for ready, some in sets:
            plain = _wire_bound(wire, ready, some)
            if plain.value_ns + most_conflict_ns(problem, paths, some) > max(floor_ns, best.value_ns):
                tail = tail_conflict_ns(problem, paths, some)
                more = msgspec.structs.replace(plain, value_ns=plain.value_ns + tail, tail_ns=tail)
                best = max(best, more, key=lambda bound: bound.value_ns)
        bounds.append(best)
    return bounds


def _wire_bound(wire: str, ready_ns: int, classes: list[MessageClass]) -> WireBound:
    """The bound from these classes, the last of which is followed by least."""
    busy = sum(c.messages * c.serialisation_ns for c in classes)
    return WireBound(
        wire=wire,
        value_ns=ready_ns + busy + classes[-1].after_ns,
        ready_ns=ready_ns,
        busy_ns=busy,
        after_ns=classes[-1].after_ns,
        tail_ns=0,
        messages=sum(c.messages for c in classes),
    )
