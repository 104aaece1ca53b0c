"""Between a Timeline and the variables of the CP-SAT model: a hint for every variable, and a solution read back.

Half a hint is worth little: CP-SAT then has to search for the rest. So every variable gets its value from the timeline
of a known schedule in normal form (`inorder`), order literals included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from crosspipe.schedule import Block, Message, Timeline
from crosspipe.solver.inorder import joined
from crosspipe.solver.lines import Key, Resource, Truth
from crosspipe.solver.model import Model

Values = Mapping[int, int] | Sequence[int]  # of the model's variables, by index
Places = dict[tuple[Key, int], tuple[int, int]]  # per entry of a line: start in ticks, rank on its stage or wire


def hint(model: Model, timeline: Timeline) -> None:
    """Hints every variable with its value in the timeline, in ticks, of a schedule in normal form."""
    values: dict[int, int] = {model.makespan.index: timeline.makespan_ns}
    for position, literals in model.fused.items():
        stage, chunk = model.problem.place(position)
        fused = {b.block.microbatch for b in timeline.blocks[stage] if b.block.kind == "B" and b.block.chunk == chunk}
        values |= {literal.index: int(k in fused) for k, literal in enumerate(literals)}
    for stage, resource in enumerate(model.stages):
        _fill(values, resource, _block_places(model, timeline, stage))
    for wire, resource in model.wires.items():
        _fill(values, resource, _message_places(timeline, wire))
    for end in model.ends:
        length = end.fused_length if _value(values, end.fused) else end.length
        values[end.end.index] = values[end.start.index] + length
    for release in model.releases:
        over = _value(values, release.weight_grad) or _value(values, release.fused)
        values[release.released.index] = int(over and _value(values, release.input_grad))
    model.cp.proto.solution_hint.vars.extend(values.keys())
    model.cp.proto.solution_hint.values.extend(values.values())


def _fill(values: dict[int, int], resource: Resource, places: Places) -> None:
    for line in resource.lines.values():
        for i, start in enumerate(line.start):
            values[start.index] = places[line.key, i][0]
    for pair in resource.pairs.values():
        for i, row in enumerate(pair.before):
            for j, literal in enumerate(row):
                if not isinstance(literal, bool):
                    first, second = places[pair.first.key, i], places[pair.second.key, j]
                    values[literal.index] = int(first[1] < second[1])


def _block_places(model: Model, timeline: Timeline, stage: int) -> Places:
    """A fused B is a D followed, once every earlier W is over, by a W of no length."""
    places: Places = {}
    pieces = model.problem.weight_grad_pieces
    over: Counter[int] = Counter()  # per chunk, entries of its line of W
    fused: set[tuple[int, int]] = set()
    for (kind, chunk, microbatch, piece, _), start, end in timeline.blocks[stage]:
        position = model.problem.position(stage, chunk)
        if kind == "W":
            places[("W", position), microbatch * pieces + piece] = start, len(places)
            over[chunk] += 1
        else:
            places[("D" if kind == "B" else kind, position), microbatch] = start, len(places)
        if kind == "B":
            fused.add((chunk, microbatch))
        while (chunk, over[chunk] // pieces) in fused:
            places[("W", position), over[chunk]] = end, len(places)
            over[chunk] += 1
    return places


def _message_places(timeline: Timeline, wire: str) -> Places:
    """In order of service; messages of no length at the same instant in the order a microbatch makes them."""
    last = 2 * timeline.stages * timeline.chunks

    def step(message: Message) -> tuple[int, int]:
        kind, position, microbatch = message
        way = {"gather": -1, "F": position, "D": last - position, "reduce": last}[kind]
        return timeline.microbatches if kind == "reduce" else microbatch, way

    served = sorted(
        (m for m in timeline.messages if m.wire == wire),
        key=lambda m: (m.start_ns, m.served_ns, m.ready_ns, step(m.message)),
    )
    return {
        ((m.message.kind, m.message.position), m.message.microbatch): (m.start_ns, rank)
        for rank, m in enumerate(served)
    }


def read(model: Model, values: Values) -> tuple[tuple[tuple[Block, ...], ...], dict[str, tuple[Message, ...]]]:
    """The orders of a solution, and the order of messages on every wire that several lines share."""
    problem = model.problem
    pieces = problem.weight_grad_pieces
    orders = []
    for resource in model.stages:
        order = []
        for (kind, position), i in _sorted(resource, values):
            chunk, cut = problem.place(position)[1], pieces if kind == "W" else 1
            microbatch, piece = divmod(i, cut)
            fused = position in model.fused and _value(values, model.fused[position][microbatch])
            if fused and kind == "D":
                order.append(Block("B", chunk, microbatch))
            elif not (fused and kind == "W"):
                order.append(Block(kind, chunk, microbatch, piece, cut))
        orders.append(joined(tuple(order)))
    messages = {
        wire: tuple(Message(*key, i) for key, i in _sorted(resource, values))
        for wire, resource in model.wires.items()
        if resource.pairs
    }
    return tuple(orders), messages


def _sorted(resource: Resource, values: Values) -> list[tuple[Key, int]]:
    """The entries of a stage or wire by how many others precede them."""
    ranks = {(line.key, i): i for line in resource.lines.values() for i in range(len(line.start))}
    for pair in resource.pairs.values():
        for i, row in enumerate(pair.before):
            for j, truth in enumerate(row):
                later = (pair.second.key, j) if _value(values, truth) else (pair.first.key, i)
                ranks[later] += 1
    return sorted(ranks, key=lambda entry: ranks[entry])


def _value(values: Values, truth: Truth) -> bool:
    """The value of a literal; a negated one has index -1 - that of its variable."""
    if isinstance(truth, bool):
        return truth
    return bool(values[truth.index]) if truth.index >= 0 else not values[-1 - truth.index]
