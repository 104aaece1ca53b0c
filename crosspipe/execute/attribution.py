"""Where the time of an iteration went beyond its prediction: a sum over the critical path of what was measured.

Every step of that path is a block, a message or a wait, and the model says how long it should have been; what is left
is late, and the parts add up to measured minus predicted, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from crosspipe.execute.trace import Trace
from crosspipe.problem import Problem
from crosspipe.schedule.timeline import Timeline

LATE_BLOCKS, LATE_MESSAGES, LATE_POSTS, WAITING, OTHER_PATH = PARTS = (
    "late_blocks",
    "late_messages",
    "late_posts",
    "waiting",
    "other_path",
)


def excess(problem: Problem, traces: Sequence[Trace], measured: Timeline, predicted_ns: int) -> dict[str, int]:
    """ns by part, of one iteration; `measured` is its timeline, `predicted_ns` the predicted makespan.

    `late_blocks`: blocks that took longer than the Problem says (negative: a paced block that began late, behind a late
    message, and met its anchor all the same). `late_messages`: messages that were longer on their
    way than alpha + beta bytes, of it as `late_posts` what passed before their receive was posted. `waiting`: nothing
    ran that the next step depended on (the engine, the scheduler of the machine, waking up). `other_path`: the length
    of this path in the prediction minus the longest, negative unless a wire served in another order than predicted.
    """
    blocks = {
        f"{b.block} on stage {rank}": problem.costs[rank][b.block.chunk].duration_ns(
            b.block.kind, b.block.piece, b.block.pieces
        )
        for rank, trace in enumerate(traces)
        for b in trace.blocks
    }
    posted = {str(m.message): m.posted_ns - trace.begin_ns for trace in traces for m in trace.messages}
    hops = {
        str(m.message): problem.message_hop(m.message.kind, m.message.position)
        for trace in traces
        for m in trace.messages
    }
    parts = dict.fromkeys(PARTS, 0)
    parts[OTHER_PATH] = -predicted_ns
    for step in measured.critical_path():
        took = step.end_ns - step.start_ns
        if step.kind == "wait":
            parts[WAITING] += took
            continue
        if step.kind == "block":
            expected = blocks[step.label]
            parts[LATE_BLOCKS] += took - expected
        else:
            label, _, occupies = step.label.partition(" occupies wire ")
            hop = hops[label]
            expected = 0 if hop is None else hop.serialisation_ns if occupies else hop.delay_ns
            late = took - expected
            by_post = 0 if occupies else min(max(0, late), max(0, posted[label] - step.start_ns))
            parts[LATE_POSTS] += by_post
            parts[LATE_MESSAGES] += late - by_post
        parts[OTHER_PATH] += expected
    return parts
