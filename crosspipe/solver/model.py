"""The CP-SAT model of the performance model: which block, and which message, comes before which.

It knows nothing about searching; `exact` builds, hints and solves it. Times are the Problem's own, in ticks. Blocks of
one kind at a position, and messages of one kind from it, form *lines* whose entries are in the order of the
microbatches (see `inorder`: nothing is lost). What is left to decide is a literal for every two entries of different
lines that share a stage or a wire; memory counts these literals, so blocks of no length are no special case. The
constraints are those of the CrossPipe paper (Chen et al., ATC'25, section 4), in this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple, TypeAlias

from ortools.sat.python import cp_model

from crosspipe.problem import Hop, Problem
from crosspipe.solver.inorder import fusing_pays

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


class Release(NamedTuple):
    """In a model with fused B: `released` implies that W or its fused B is over, `weight_grad` or `fused` and D."""

    released: cp_model.IntVar
    weight_grad: Truth
    fused: cp_model.IntVar
    input_grad: Truth


class End(NamedTuple):
    """In a model with fused B, the end of a D or W: `fused_length` after its start where the B is fused."""

    end: cp_model.IntVar
    start: cp_model.IntVar
    fused: cp_model.IntVar
    length: int
    fused_length: int


class Model(NamedTuple):
    """The model, and what is needed to hint it and to read a solution."""

    problem: Problem
    cp: cp_model.CpModel
    makespan: cp_model.IntVar
    stages: list[Resource]
    wires: dict[str, Resource]
    fused: dict[int, list[cp_model.IntVar]]  # per position where fusing pays, by microbatch
    releases: list[Release]
    ends: list[End]


def negated(truth: Truth) -> Truth:
    """not `truth`, whether it is decided or not."""
    return not truth if isinstance(truth, bool) else ~truth


def build(problem: Problem, lower: int, upper: int, *, as_ready: bool) -> Model:
    """The model of all schedules with a makespan in [lower, upper], to be minimised.

    `as_ready`: messages of different senders on a wire are served as they become ready, the only order that different
    ranks can execute.
    """
    cp = cp_model.CpModel()
    makespan = cp.new_int_var(lower, upper, "makespan")
    model = Model(problem, cp, makespan, [], {}, {}, [], [])
    for stage in range(problem.stages):
        lines: dict[Key, Line] = {}
        for chunk in range(problem.chunks):
            lines |= _blocks(model, stage, chunk, upper)
        model.stages.append(_resource(cp, lines, problem.positions))
        if problem.chunks == 1:
            _round_rule(model, stage)
        _memory(model, stage)
    for wire, lines in _messages(model, upper).items():
        model.wires[wire] = _resource(cp, lines, problem.positions)
        if as_ready:
            for pair in model.wires[wire].pairs.values():
                if pair.first.sender != pair.second.sender:
                    _serve_as_ready(cp, pair)
    cp.minimize(makespan)
    return model


def _blocks(model: Model, stage: int, chunk: int, upper: int) -> dict[Key, Line]:
    """The lines F, D and W of a (stage, chunk); where B is fused, D has its length and W none."""
    problem, cp = model.problem, model.cp
    cost, position = problem.costs[stage][chunk], problem.position(stage, chunk)
    fused: list[cp_model.IntVar] = []
    if fusing_pays(cost):
        fused = [cp.new_bool_var(f"fused{position}_{k}") for k in range(problem.microbatches)]
        model.fused[position] = fused
    lines: dict[Key, Line] = {}
    for kind in "FDW":
        cut = problem.weight_grad_pieces if kind == "W" else 1
        microbatches = tuple(k for k in range(problem.microbatches) for _ in range(cut))
        instant = cost.duration_ns(kind, cut - 1, cut) == 0 or (kind == "W" and bool(fused))
        instant = instant or (kind == "D" and bool(fused) and cost.backward_ns == 0)
        line = Line(kind, position, microbatches, [], [], [], [], stage, instant)
        for i, microbatch in enumerate(microbatches):
            name = f"{kind}{position}_{i}"
            length = cost.duration_ns(kind, i % cut, cut)
            start = cp.new_int_var(0, upper, name)
            if fused and kind != "F":
                choice = fused[microbatch]
                end = End(
                    cp.new_int_var(0, upper, f"{name}_end"), start, choice, length, cost.backward_ns * (kind == "D")
                )
                size = length + (end.fused_length - length) * choice
                line.intervals.append(cp.new_interval_var(start, size, end.end, name))
                line.end.append(end.end)
                model.ends.append(end)
            else:
                line.intervals.append(cp.new_fixed_size_interval_var(start, length, name))
                line.end.append(start + length)
            line.start.append(start)
        _in_sequence(cp, line)
        cp.add(model.makespan >= line.end[-1])
        lines[line.key] = line
    for first, then in (("F", "D"), ("D", "W")):
        line = lines[then, position]
        for i, microbatch in enumerate(line.microbatches):
            cp.add(line.start[i] >= lines[first, position].end[microbatch])
    return lines


def _in_sequence(cp: cp_model.CpModel, line: Line) -> None:
    for i in range(1, len(line.start)):
        cp.add(line.start[i] >= line.end[i - 1])


def _messages(model: Model, upper: int) -> dict[str, dict[Key, Line]]:
    """Per wire that can queue the lines of its messages; other messages only delay what they lead to."""
    problem, cp = model.problem, model.cp
    wires: dict[str, dict[Key, Line]] = {}
    sent = [(kind, position) for position in range(problem.positions) for kind in ("F", "D", "gather", "reduce")]
    hops = {key: hop for key in sent if (hop := problem.message_hop(*key)) is not None}
    queueing = {hop.wire for hop in hops.values() if hop.wire is not None and hop.serialisation_ns}
    for (kind, position), hop in hops.items():
        stage = problem.place(position)[0]
        lines = model.stages[stage].lines
        ready: list[cp_model.LinearExprT] = [0] if kind == "gather" else [lines["W", position].end[-1]]
        if kind in "FD":
            ready = lines[kind, position].end
        leaves = ready
        if hop.wire in queueing:
            instant = hop.serialisation_ns == 0
            line = Line(kind, position, tuple(range(len(ready))), [], [], [], ready, stage, instant)
            for i, earliest in enumerate(ready):
                name = f"{kind}{position}_message{i}"
                start = cp.new_int_var(0, upper, name)
                cp.add(start >= earliest)
                line.start.append(start)
                line.end.append(start + hop.serialisation_ns)
                line.intervals.append(cp.new_fixed_size_interval_var(start, hop.serialisation_ns, name))
            _in_sequence(cp, line)
            wires.setdefault(str(hop.wire), {})[line.key] = line
            leaves = list(line.start)
        _deliver(model, kind, position, hop, leaves)
    return wires


def _deliver(model: Model, kind: str, position: int, hop: Hop, leaves: list[cp_model.LinearExprT]) -> None:
    """What a message leads to starts no earlier than its arrival; the reduction's arrival is an end of its own."""
    arrivals = [start + hop.delay_ns for start in leaves]
    if kind == "reduce":
        model.cp.add(model.makespan >= arrivals[0])
        return
    target = position + {"F": 1, "D": -1, "gather": 0}[kind]
    line = model.stages[model.problem.place(target)[0]].lines["F" if kind == "gather" else kind, target]
    for start, arrival in zip(line.start, arrivals, strict=False):  # one gather, for the first F
        model.cp.add(start >= arrival)


def precedes(first: Key, second: Key, positions: int) -> bool:
    """Whether, within every microbatch, an entry of `first` always comes before one of `second`.

    A microbatch visits F upwards, then D downwards; W hangs on its D. The same holds for the messages they send.
    """

    def step(key: Key) -> int:
        return key[1] if key[0] == "F" else 2 * positions - 1 - key[1]

    if first[0] not in "FD" or second[0] not in "FDW":
        return False
    return step(first) < step(second) + (second[0] == "W")


def _resource(cp: cp_model.CpModel, lines: dict[Key, Line], positions: int) -> Resource:
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


def _any_of(cp: cp_model.CpModel, *truths: Truth) -> None:
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
            _any_of(cp, *circle)
            _any_of(cp, *(negated(truth) for truth in circle))


def _memory(model: Model, stage: int) -> None:
    """What is held when an F or D starts, counted over the blocks before it, stays within the stage's limit."""
    problem, cp = model.problem, model.cp
    limit, costs = problem.activation_limit_bytes[stage], problem.costs[stage]
    if limit is None:
        return
    resource = model.stages[stage]
    for chunk, cost in enumerate(costs):
        for kind in "FD":
            key, take = (kind, problem.position(stage, chunk)), cost.take_bytes(kind)
            if take:
                for i in range(problem.microbatches):
                    fits = sum(_held_before(model, resource, stage, key, i)) + take <= limit
                    if not isinstance(fits, bool):  # nothing to decide: one microbatch fits
                        cp.add(fits)


def _held_before(model: Model, resource: Resource, stage: int, key: Key, i: int) -> Iterator[cp_model.LinearExprT]:
    """Terms whose sum is what blocks before entry i of line `key` have taken and not released."""
    problem, cp = model.problem, model.cp
    for other, line in resource.lines.items():
        cost = problem.costs[stage][problem.place(line.position)[1]]
        cut = problem.weight_grad_pieces if line.kind == "W" else 1
        fused = model.fused.get(line.position)
        for j, microbatch in enumerate(line.microbatches):
            before = resource.before(other, j, key, i)
            if before is False and not (fused and line.kind == "W"):
                continue
            if fused and line.kind == "W":
                input_grad = resource.before(("D", line.position), microbatch, key, i)
                if input_grad is False:
                    continue
                released = cp.new_bool_var(f"released{line.position}_{j}_{key}_{i}")
                _any_of(cp, ~released, before, fused[microbatch])
                _any_of(cp, ~released, input_grad)
                model.releases.append(Release(released, before, fused[microbatch], input_grad))
                before = released
            yield (cost.take_bytes(line.kind) if j % cut == 0 else 0) * before
            yield -cost.release_bytes(line.kind, j % cut, cut) * before


def _round_rule(model: Model, stage: int) -> None:
    """Redundant: F of microbatch k starts after the D that makes room for it, and after what else must make room.

    With d the least number of D that can make room, all W done: F(k) follows D(d-1). If that takes all d W as well,
    then after D(d-1) either its W or a further D runs before F(k).
    """
    problem = model.problem
    limit, cost = problem.activation_limit_bytes[stage], problem.costs[stage][0]
    if limit is None:
        return
    lines = model.stages[stage].lines
    forward, input_grad = lines["F", stage], lines["D", stage]
    by_input_grad = cost.input_grad_release_bytes - cost.input_grad_take_bytes
    room = 0  # number of D
    for k in range(problem.microbatches):
        held = (k + 1) * cost.forward_keep_bytes
        while held - room * cost.forward_keep_bytes > limit:  # D and W together return what F keeps
            room += 1
        if room:
            every_weight_grad = held - room * by_input_grad - (room - 1) * cost.weight_grad_release_bytes > limit
            simple = problem.weight_grad_pieces == 1 and stage not in model.fused
            gap = min(cost.input_grad_ns, cost.weight_grad_ns) if every_weight_grad and simple else 0
            model.cp.add(forward.start[k] >= input_grad.end[room - 1] + gap)


def _serve_as_ready(cp: cp_model.CpModel, pair: Pair) -> None:
    """Messages of different senders: the earlier ready goes first, at equal times either."""
    for i, row in enumerate(pair.before):
        for j, literal in enumerate(row):
            if not isinstance(literal, bool):
                _implies(cp, literal, pair.first.ready[i] <= pair.second.ready[j])
                _implies(cp, ~literal, pair.second.ready[j] <= pair.first.ready[i])


def _implies(cp: cp_model.CpModel, literal: cp_model.IntVar, relation: cp_model.BoundedLinearExpression | bool) -> None:
    if not isinstance(relation, bool):
        cp.add(relation).only_enforce_if(literal)
    elif not relation:
        cp.add_bool_or(~literal)
