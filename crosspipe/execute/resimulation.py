"""The performance model over measured durations: how long would the iteration take if nothing but its parts were known?

Anchored pacing could make measured times agree with the prediction by construction. Here every block gets the time it
really took, every message the time it really was on its way, and the order and the wires do the rest; no start time,
planned or measured, is used.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from crosspipe.execute.dependencies import made, needed
from crosspipe.execute.trace import Trace, TracedMessage
from crosspipe.problem import Problem
from crosspipe.schedule.order import Message


def resimulate(problem: Problem, traces: Sequence[Trace]) -> int:
    """Makespan in ns of one iteration, `traces[rank]`; wires serve in the order in which they really served."""
    timed = {m.message: m for trace in traces for m in trace.messages}
    wires: dict[str, deque[TracedMessage]] = defaultdict(deque)
    for m in sorted(timed.values(), key=lambda m: m.start_ns):
        hop = problem.message_hop(m.message.kind, m.message.position)
        if hop is not None and hop.wire is not None:
            wires[hop.wire].append(m)
    queued = {m.message for queue in wires.values() for m in queue}
    ready: dict[Message, int] = {message: 0 for message in timed if message.kind == "gather"}
    arrival: dict[Message, int] = {}
    free: dict[str, int] = defaultdict(int)
    at, end = [0] * len(traces), [0] * len(traces)
    starts = [0] * len(ready)

    def travel(m: TracedMessage, start: int) -> None:
        arrival[m.message] = start + m.raw_arrival_ns - m.start_ns

    def advance(rank: int) -> bool:
        if at[rank] == len(traces[rank].blocks):
            return False
        block, _, _, raw_start, _, raw_end = traces[rank].blocks[at[rank]]
        position = problem.position(rank, block.chunk)
        inputs = [needed(problem, rank, block)]
        if block.kind == "F" and (gather := Message("gather", position, 0)) in timed:
            inputs.append(gather)
        if any(message is not None and message not in arrival for message in inputs):
            return False
        start = max([end[rank], *(arrival[message] for message in inputs if message is not None)])
        starts.append(start)
        end[rank] = start + raw_end - raw_start
        at[rank] += 1
        passed = made(problem, rank, block)
        if passed is not None:
            ready[passed[0]] = end[rank]
        if block.kind in "WB":  # the last one of its chunk sets it
            ready[Message("reduce", position, 0)] = end[rank]
        return True

    def reduced(message: Message) -> bool:
        """Whether a reduction's gradients are complete; other messages are once they are ready."""
        stage, chunk = problem.place(message.position)
        left = traces[stage].blocks[at[stage] :]
        return message.kind != "reduce" or not any(b.block.chunk == chunk and b.block.kind in "WB" for b in left)

    moved = True
    while moved:
        moved = any(advance(rank) for rank in range(len(traces)))
        for message, m in timed.items():
            if message not in queued and message not in arrival and message in ready and reduced(message):
                travel(m, ready[message])
                moved = True
        for wire, queue in wires.items():
            while queue and queue[0].message in ready and reduced(queue[0].message):
                m = queue.popleft()
                start = max(ready[m.message], free[wire])
                free[wire] = start + m.served_ns - m.start_ns
                travel(m, start)
                moved = True
    return max([*end, *(t for message, t in arrival.items() if message.kind == "reduce")]) - min(starts, default=0)
