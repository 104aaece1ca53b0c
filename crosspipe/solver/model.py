"""The CP-SAT model of the performance model: which block, and which message, comes before which.

It knows nothing about searching; `cpsat` builds, hints and solves it. Times are the Problem's own, in ticks. Blocks of
one kind at a position, and messages of one kind from it, form `lines`; memory counts their order literals, so blocks of
no length are no special case. The constraints are those of the CrossPipe paper (Chen et al., ATC'25, section 4), in
this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ortools.sat.python import cp_model

from crosspipe.problem import Hop, Problem
from crosspipe.solver.inorder import fusing_pays
from crosspipe.solver.lines import Key, Line, Pair, Resource, Truth, any_of, implies, in_sequence, resource_of


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
        model.stages.append(resource_of(cp, lines, problem.positions))
        if problem.chunks == 1:
            _round_rule(model, stage)
        _memory(model, stage)
    for wire, lines in _messages(model, upper).items():
        model.wires[wire] = resource_of(cp, lines, problem.positions)
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
        in_sequence(cp, line)
        cp.add(model.makespan >= line.end[-1])
        lines[line.key] = line
    for first, then in (("F", "D"), ("D", "W")):
        line = lines[then, position]
        for i, microbatch in enumerate(line.microbatches):
            cp.add(line.start[i] >= lines[first, position].end[microbatch])
    return lines


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
            in_sequence(cp, line)
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
                any_of(cp, ~released, before, fused[microbatch])
                any_of(cp, ~released, input_grad)
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
                implies(cp, literal, pair.first.ready[i] <= pair.second.ready[j])
                implies(cp, ~literal, pair.second.ready[j] <= pair.first.ready[i])
