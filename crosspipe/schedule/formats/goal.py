"""A schedule in GOAL, the input language of LogGOPSim (Hoefler, Siebert, Lumsdaine, HPDC'10).

Every stage is a rank, every block a `calc` of its ns. LogGOPSim has one latency and one bandwidth for all pairs, so
what a file cannot say stands in its head: which L and G fit. It is an exchange format; our model is richer.
"""

from __future__ import annotations

from collections.abc import Iterator

from crosspipe.problem import Problem
from crosspipe.schedule.order import Message, Schedule


def goal_text(problem: Problem, schedule: Schedule) -> str:
    """The schedule as GOAL text for LogGOPSim's `txt2bin`; FieldError if it does not fit the problem.

    Message sizes are those of the problem's costs in bytes; where it has none, a message has as many bytes as its
    serialisation has ns (so G = 1). Gathers and reductions run as a `calc` of their delay beside the blocks (cpu 1).
    """
    schedule.check_runs_on(problem)
    costs = [cost for row in problem.costs for cost in row]
    sized = any(cost.forward_message_bytes or cost.backward_message_bytes for cost in costs)
    latency = max((hop.latency_ns for hop in (*problem.forward_hops, *problem.backward_hops)), default=0)
    lines = [
        f"// {schedule.name or 'schedule'}: {problem.stages} stages, {problem.microbatches} microbatches, "
        f"traversal {problem.traversal}; calc in ns",
        "// message sizes are bytes" if sized else "// message sizes are ns of serialisation: simulate with -G 1",
        f"// simulate with -L {latency} -o 0 -g 0; LogGOPSim has one latency, here that of the slowest boundary",
        f"num_ranks {problem.stages}",
        "",
    ]
    for stage in range(problem.stages):
        lines += [f"rank {stage} {{", *_rank(problem, schedule, stage, sized), "}", ""]
    return "\n".join(lines)


def _rank(problem: Problem, schedule: Schedule, stage: int, sized: bool) -> Iterator[str]:
    """Operations of one stage, then what each requires."""
    required: list[tuple[str, str]] = []
    last_of = {b.chunk: i for i, b in enumerate(schedule.orders[stage]) if b.kind in ("W", "B")}
    gathered: set[int] = set()
    for i, block in enumerate(schedule.orders[stage]):
        position = problem.position(stage, block.chunk)
        yield f"b{i}: calc {problem.costs[stage][block.chunk].duration_ns(block.kind, block.piece, block.pieces)}"
        if i:
            required.append((f"b{i}", f"b{i - 1}"))
        if block.kind != "W":
            kind = "F" if block.kind == "F" else "D"
            received = Message(kind, position + (-1 if kind == "F" else 1), block.microbatch)
            if 0 <= received.position < problem.positions and problem.place(received.position)[0] != stage:
                source = problem.place(received.position)[0]
                yield f"r{i}: recv {_size(problem, received, sized)}b from {source} tag {_tag(problem, received)}"
                required.append((f"b{i}", f"r{i}"))
            sent = Message(kind, position, block.microbatch)
            target = position + (1 if kind == "F" else -1)
            if 0 <= target < problem.positions and problem.place(target)[0] != stage:
                to = problem.place(target)[0]
                yield f"s{i}: send {_size(problem, sent, sized)}b to {to} tag {_tag(problem, sent)}"
                required.append((f"s{i}", f"b{i}"))
        gather = problem.message_hop("gather", position) if block.kind == "F" else None
        if gather is not None and block.chunk not in gathered:
            gathered.add(block.chunk)
            yield f"g{i}: calc {gather.delay_ns} cpu 1"
            required.append((f"b{i}", f"g{i}"))
        reduce = problem.message_hop("reduce", position)
        if reduce is not None and last_of.get(block.chunk) == i:
            yield f"a{i}: calc {reduce.delay_ns} cpu 1"
            required.append((f"a{i}", f"b{i}"))
    yield from (f"{later} requires {earlier}" for later, earlier in required)


def _size(problem: Problem, message: Message, sized: bool) -> int:
    """Bytes of a message, or ns of its serialisation where the problem states no bytes."""
    if not sized:
        hop = problem.message_hop(message.kind, message.position)
        return 0 if hop is None else hop.serialisation_ns
    stage, chunk = problem.place(message.position)
    cost = problem.costs[stage][chunk]
    return cost.forward_message_bytes if message.kind == "F" else cost.backward_message_bytes


def _tag(problem: Problem, message: Message) -> int:
    """A number that only this message has."""
    row = message.position + (problem.positions if message.kind == "D" else 0)
    return row * problem.microbatches + message.microbatch
