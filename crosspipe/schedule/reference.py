"""The performance model, in its readable form: when does each block and message happen, given the order.

This is the one definition of the model (CrossPipe, Chen et al., ATC'25, section 4, with queueing on shared wires). The
compiled kernel in `crosspipe.schedule.kernel` must agree with it on every problem; the tests hold them together.
"""

from __future__ import annotations

import heapq

from crosspipe.problem import Problem
from crosspipe.schedule.deadlock import explain_deadlock
from crosspipe.schedule.order import Block, Message, Schedule
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline, in_ready_order, memory_steps


def simulate_reference(problem: Problem, schedule: Schedule) -> Timeline:
    """The predicted Timeline of `schedule` on `problem`, all times in ns from 0; memory is reported, not enforced.

    A block starts when its stage is free and its input has arrived. A message is ready at its block's end, waits for
    its wire, occupies it for its serialisation, arrives a latency later. Wires with a listed order serve it strictly,
    others first come first served (ready time, then microbatch, D before F, position).

    Raises FieldError if the schedule is not of this problem's shape or names what the problem does not have, Deadlock
    (with who waits for whom) if it cannot finish.
    """
    schedule.check_runs_on(problem)
    stages = range(problem.stages)
    places = [problem.place(position) for position in range(problem.positions)]
    blocks: list[list[TimedBlock]] = [[] for _ in stages]
    available: dict[tuple[str, int, int], int] = {}  # inputs at a position: own blocks, messages as (kind, to, mb)
    gathers = [Message("gather", k, 0) for k in range(problem.positions) if problem.message_hop("gather", k)]
    reductions = {  # blocks left before a position's gradients are reduced
        k: sum(b.chunk == places[k][1] and b.kind in "WB" for b in schedule.orders[places[k][0]])
        for k in range(problem.positions)
        if problem.data_parallel
    }
    events: list[tuple[tuple[int, int, bool, int, str], Message]] = []  # a heap of messages in ready order
    wire_free: dict[str, int] = {}
    to_serve = {wire: list(order) for wire, order in schedule.messages.items()}  # what a listed wire serves next
    waiting: dict[str, dict[Message, int]] = {wire: {} for wire in to_serve}  # ready on a listed wire, and since when
    sent: list[TimedMessage] = []

    def send(message: Message, ready: int) -> None:
        heapq.heappush(events, (in_ready_order(TimedMessage(message, None, ready, 0, 0, 0)), message))

    def earliest(position: int, block: Block) -> int | None:
        """When the inputs of a block are there, in ns; None while one of them has no time yet."""
        kind, _, mb = block[:3]
        if kind == "F":
            needs = [("F to", position, mb)] if position else []
            needs += [("gather", position, 0)] if Message("gather", position, 0) in gathers else []
        elif kind == "W":
            needs = [("D", position, mb)]
        else:
            needs = [("F", position, mb)] + ([("D to", position, mb)] if position + 1 < problem.positions else [])
        moments = [available.get(need) for need in needs]
        return None if None in moments else max((m for m in moments if m is not None), default=0)

    def advance(stage: int) -> None:
        for block in schedule.orders[stage][len(blocks[stage]) :]:
            position = problem.position(stage, block.chunk)
            inputs = earliest(position, block)
            if inputs is None:
                return
            start = max(inputs, blocks[stage][-1].end_ns if blocks[stage] else 0)
            end = start + problem.costs[stage][block.chunk].duration_ns(block.kind, block.piece, block.pieces)
            blocks[stage].append(TimedBlock(block, start, end))
            if block.kind != "W":
                output = Message("D" if block.kind == "B" else block.kind, position, block.microbatch)
                available[output] = end
                if problem.message_hop(*output[:2]) is not None:
                    send(output, end)
            if block.kind in "WB" and position in reductions:
                reductions[position] -= 1
                if reductions[position] == 0:
                    send(Message("reduce", position, 0), end)

    def serve(message: Message, ready: int) -> None:
        kind, position, mb = message
        hop = problem.message_hop(kind, position)
        assert hop is not None
        start = ready if hop.wire is None else max(ready, wire_free.get(hop.wire, 0))
        served, arrival = start + hop.serialisation_ns, start + hop.delay_ns
        if hop.wire is not None:
            wire_free[hop.wire] = served
        sent.append(TimedMessage(message, hop.wire, ready, start, served, arrival))
        target = position + {"F": 1, "D": -1}.get(kind, 0)
        available[f"{kind} to" if kind in "FD" else kind, target, mb] = arrival
        advance(places[target][0])

    for message in gathers:
        send(message, 0)
    for stage in stages:
        advance(stage)
    while events:
        (ready, *_), message = heapq.heappop(events)
        hop = problem.message_hop(message.kind, message.position)
        wire = hop.wire if hop is not None else None
        if wire not in waiting:
            serve(message, ready)
            continue
        waiting[wire][message] = ready
        while to_serve[wire] and to_serve[wire][0] in waiting[wire]:
            head = to_serve[wire].pop(0)
            serve(head, waiting[wire].pop(head))
    if any(waiting.values()) or any(len(blocks[s]) < len(schedule.orders[s]) for s in stages):
        raise explain_deadlock(problem, schedule, [len(row) for row in blocks])
    return Timeline(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        sites=problem.sites,
        blocks=tuple(tuple(row) for row in blocks),
        messages=tuple(sorted(sent, key=in_ready_order)),
        memory=tuple(memory_steps(problem, tuple(blocks[s]), s) for s in stages),
    )
