"""The performance model, in its readable form: when does each block and message happen, given the order.

This is the one definition of the model (CrossPipe, Chen et al., ATC'25, section 4, with queueing on shared wires). The
compiled kernel in `crosspipe.schedule.kernel` must agree with it on every problem; the tests hold them together.
"""

from __future__ import annotations

import heapq

from crosspipe.errors import Deadlock
from crosspipe.problem import Problem
from crosspipe.schedule.order import Block, Message, Schedule
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline, memory_steps


def simulate_reference(problem: Problem, schedule: Schedule) -> Timeline:
    """The predicted Timeline of `schedule` on `problem`, all times in ns from 0; memory is reported, not enforced.

    A block starts when its stage is free and its input has arrived. A message is ready at its block's end, waits for
    its wire, occupies it for its serialisation, arrives a latency later. Wires with a listed order serve it strictly,
    others first come first served (ready time, then microbatch, D before F, position).

    Raises FieldError if the schedule is not of this problem's shape, Deadlock (with who waits for whom) if it cannot
    finish.
    """
    schedule.check_fits(problem)
    stages = range(problem.stages)
    done: list[list[TimedBlock]] = [[] for _ in stages]
    finished: dict[tuple[str, int, int], int] = {}  # (kind, position, microbatch) -> end of the block (all its pieces)
    arrived: dict[tuple[str, int, int], int] = {}  # message as received at a position -> arrival
    events: list[tuple[int, int, int, int, Message]] = []  # messages by ready time and tie-break
    waiting: dict[str, dict[Message, int]] = {w: {} for w in schedule.messages}  # listed wires: ready, not yet served
    listed = {wire: iter(order) for wire, order in schedule.messages.items()}
    heads = {wire: next(order, None) for wire, order in listed.items()}
    wire_free: dict[str, int] = {}
    sent: list[TimedMessage] = []
    left = {
        (stage, chunk): sum(b.kind in "WB" and b.chunk == chunk for b in schedule.orders[stage])
        for stage in stages
        for chunk in range(problem.chunks)
    }

    def hop_of(message: Message):  # type: ignore[no-untyped-def]
        if message.kind in ("reduce", "gather"):
            stage, chunk = problem.place(message.position)
            return getattr(problem.data_parallel[stage][chunk], message.kind)
        return problem.hop(message.kind, message.position)

    def send(message: Message, ready: int) -> None:
        backward_first = 0 if message.kind != "F" else 1
        heapq.heappush(events, (ready, message.microbatch, backward_first, message.position, message))

    def serve(message: Message, ready: int) -> int:
        hop = hop_of(message)
        start = ready if hop.wire is None else max(ready, wire_free.get(hop.wire, 0))
        served = start + hop.serialisation_ns
        if hop.wire is not None:
            wire_free[hop.wire] = served
        kind, position, microbatch = message
        target = position + {"F": 1, "D": -1}.get(kind, 0)
        arrived[kind, target, microbatch] = served + hop.latency_ns
        sent.append(TimedMessage(message, hop.wire, ready, start, served, served + hop.latency_ns))
        return problem.place(target)[0]

    def missing_input(stage: int, block: Block) -> tuple[int | None, str]:
        """Earliest time the block's inputs allow, or (None, what it waits for)."""
        kind, chunk, mb = block.kind, block.chunk, block.microbatch
        position = problem.position(stage, chunk)
        needs: list[tuple[dict[tuple[str, int, int], int], tuple[str, int, int]]] = []
        if kind == "F":
            if position > 0:
                needs.append((arrived, ("F", position, mb)))
            if problem.data_parallel and problem.data_parallel[stage][chunk].gather is not None:
                needs.append((arrived, ("gather", position, 0)))
        elif kind in ("D", "B"):
            needs.append((finished, ("F", position, mb)))
            if position < problem.positions - 1:
                needs.append((arrived, ("D", position, mb)))
        else:
            needs.append((finished, ("D", position, mb)))
        for table, key in needs:
            if key not in table:
                what = "the message" if table is arrived else "its own"
                return None, f"{what} {key[0]}{mb} at position {position}"
        return max((table[key] for table, key in needs), default=0), ""

    def advance(stage: int) -> None:
        order = schedule.orders[stage]
        while len(done[stage]) < len(order):
            block = order[len(done[stage])]
            earliest, _ = missing_input(stage, block)
            if earliest is None:
                return
            cost = problem.costs[stage][block.chunk]
            start = max(earliest, done[stage][-1].end_ns if done[stage] else 0)
            end = start + cost.duration_ns(block.kind, block.piece, block.pieces)
            done[stage].append(TimedBlock(block, start, end))
            position = problem.position(stage, block.chunk)
            kind = "D" if block.kind == "B" else block.kind
            finished[kind, position, block.microbatch] = end
            if problem.hop(kind, position) is not None:
                send(Message(kind, position, block.microbatch), end)
            if block.kind in "WB":
                left[stage, block.chunk] -= 1
                if problem.data_parallel and left[stage, block.chunk] == 0:
                    send(Message("reduce", position, 0), end)

    for stage in stages:
        for chunk in range(problem.chunks):
            if problem.data_parallel and problem.data_parallel[stage][chunk].gather is not None:
                send(Message("gather", problem.position(stage, chunk), 0), 0)
        advance(stage)
    while events:
        ready, _, _, _, message = heapq.heappop(events)
        wire = hop_of(message).wire
        if wire not in waiting:
            advance(serve(message, ready))
            continue
        waiting[wire][message] = ready
        while heads[wire] is not None and heads[wire] in waiting[wire]:
            head = heads[wire]
            heads[wire] = next(listed[wire], None)
            advance(serve(head, waiting[wire].pop(head)))
    stuck = [s for s in stages if len(done[s]) < len(schedule.orders[s])]
    if stuck or any(waiting.values()):
        words = [
            f"stage {s} stops before {schedule.orders[s][len(done[s])]}, "
            f"waiting for {missing_input(s, schedule.orders[s][len(done[s])])[1]}"
            for s in stuck
        ]
        words += [f"wire {w} holds {list(m)} until {heads[w]} is ready" for w, m in waiting.items() if m]
        raise Deadlock(words)
    blocks = tuple(tuple(row) for row in done)
    return Timeline(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        sites=problem.sites,
        blocks=blocks,
        messages=tuple(sent),
        memory=tuple(memory_steps(problem, blocks[s], s) for s in stages),
    )
