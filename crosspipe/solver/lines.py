"""Lines: entries in a fixed order that share a stage or a wire with other lines, and the literals that order them.

The one building block of the CP-SAT model. Entries of a line are in the order of the microbatches (see `inorder`:
nothing is lost); every two entries of different lines of a resource get a literal, unless the way of a microbatch
through the pipeline already decides.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple, TypeAlias

from ortools.sat.python import cp_model

Truth: TypeAlias = cp_model.IntVar | bool
Key: TypeAlias = tuple[str, int]  # (kind, position) of a line


class Line(NamedTuple):
    """Entries in a fixed order; `microbatches[i]` is that of entry i.

    `start` and `end` are per entry; a message also has `ready`, when it may leave, and its `sender`, a stage.
    `may_be_instant`: entries can have length 0.
    """

    kind: str
    position: int
    microbatches: tuple[int, ...]
    start: list[cp_model.IntVar]
    end: list[cp_model.LinearExprT]
    intervals: list[cp_model.IntervalVar]
    ready: list[cp_model.LinearExprT]
    sender: int
    may_be_instant: bool

    @property
    def key(self) -> Key:
        return self.kind, self.position


class Pair(NamedTuple):
    """Two lines of one resource: `before[i][j]` says that entry i of `first` precedes entry j of `second`."""

    first: Line
    second: Line
    before: list[list[Truth]]


class Resource(NamedTuple):
    """A stage or a wire: its lines and, for every two of them, who precedes whom."""

    lines: dict[Key, Line]
    pairs: dict[tuple[Key, Key], Pair]

    def before(self, first: Key, i: int, second: Key, j: int) -> Truth:
        """Whether entry i of line `first` precedes entry j of line `second`."""
        if first == second:
            return i < j
        if (first, second) in self.pairs:
            return self.pairs[first, second].before[i][j]
        return negated(self.pairs[second, first].before[j][i])


def negated(truth: Truth) -> Truth:
    """not `truth`, whether it is decided or not."""
    return not truth if isinstance(truth, bool) else ~truth


def in_sequence(cp: cp_model.CpModel, line: Line) -> None:
    """Each entry starts after the one before it."""
    for i in range(1, len(line.start)):
        cp.add(line.start[i] >= line.end[i - 1])


def precedes(first: Key, second: Key, positions: int) -> bool:
    """Whether, within every microbatch, an entry of `first` always comes before one of `second`.

    A microbatch visits F upwards, then D downwards; W hangs on its D. The same holds for the messages they send.
    """

    def step(key: Key) -> int:
        return key[1] if key[0] == "F" else 2 * positions - 1 - key[1]

    if first[0] not in "FD" or second[0] not in "FDW":
        return False
    return step(first) < step(second) + (second[0] == "W")


def resource_of(cp: cp_model.CpModel, lines: dict[Key, Line], positions: int) -> Resource:
    """One entry at a time, and a literal for every two entries of different lines whose order is open."""
    pairs = {}
    for first, second in combinations(lines.values(), 2):
        forwards, backwards = (precedes(a.key, b.key, positions) for a, b in ((first, second), (second, first)))
        before: list[list[Truth]] = []
        for i, one in enumerate(first.microbatches):
            row: list[Truth] = []
            for j, other in enumerate(second.microbatches):
                if forwards and one <= other:
                    row.append(True)
                elif backwards and other <= one:
                    row.append(False)
                else:
                    literal = cp.new_bool_var(f"{first.kind}{first.position}_{i}<{second.kind}{second.position}_{j}")
                    cp.add(second.start[j] >= first.end[i]).only_enforce_if(literal)
                    cp.add(first.start[i] >= second.end[j]).only_enforce_if(~literal)
                    row.append(literal)
            before.append(row)
        _monotone(cp, before)
        pairs[first.key, second.key] = Pair(first, second, before)
    if pairs:
        cp.add_no_overlap([interval for line in lines.values() for interval in line.intervals])
    resource = Resource(lines, pairs)
    _acyclic(cp, resource)
    return resource


def _monotone(cp: cp_model.CpModel, before: list[list[Truth]]) -> None:
    """What precedes entry j precedes j + 1; redundant, but it propagates without times."""
    for i, row in enumerate(before):
        for j, literal in enumerate(row):
            if isinstance(literal, bool):
                continue
            if i > 0 and not isinstance(before[i - 1][j], bool):
                cp.add_implication(literal, before[i - 1][j])
            if j + 1 < len(row) and not isinstance(row[j + 1], bool):
                cp.add_implication(literal, row[j + 1])


def any_of(cp: cp_model.CpModel, *truths: Truth) -> None:
    """At least one of them holds."""
    if True not in {truth for truth in truths if isinstance(truth, bool)}:
        cp.add_bool_or([truth for truth in truths if not isinstance(truth, bool)])


def _acyclic(cp: cp_model.CpModel, resource: Resource) -> None:
    """Times forbid that three entries precede one another in a circle, unless none of them has a length."""
    instant = [line for line in resource.lines.values() if line.may_be_instant]
    for a, b, c in combinations(instant, 3):
        for i, j, k in product(range(len(a.start)), range(len(b.start)), range(len(c.start))):
            circle = [
                resource.before(a.key, i, b.key, j),
                resource.before(b.key, j, c.key, k),
                resource.before(c.key, k, a.key, i),
            ]
            any_of(cp, *circle)
            any_of(cp, *(negated(truth) for truth in circle))


def implies(cp: cp_model.CpModel, literal: cp_model.IntVar, relation: cp_model.BoundedLinearExpression | bool) -> None:
    """The relation holds where the literal does; it may be decided already."""
    if not isinstance(relation, bool):
        cp.add(relation).only_enforce_if(literal)
    elif not relation:
        cp.add_bool_or(~literal)
