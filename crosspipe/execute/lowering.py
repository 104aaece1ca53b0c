"""From a Schedule to a Plan: which receive is posted when, into which buffer, and which send follows which block.

The order of blocks is the Schedule's own; nothing is re-ordered here. Receives are put in the order of their sends and
posted ahead by the predicted time of the send they meet (CrossPipe, Chen et al., ATC'25), so that no byte
waits for a receiver that is busy computing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from crosspipe.errors import FieldError
from crosspipe.execute.deadlock import check_rendezvous
from crosspipe.execute.plan import Action, Plan, RankPlan
from crosspipe.execute.spec import Session
from crosspipe.problem import Problem
from crosspipe.schedule import check, simulate
from crosspipe.schedule.order import Message, Schedule
from crosspipe.schedule.timeline import Timeline, in_ready_order


class _Transfer(NamedTuple):
    """One message between two ranks: where it leaves and is used, as indices into the orders of its two ranks."""

    message: Message
    source: int
    target: int
    wire: str | None
    size_bytes: int
    send_after: int  # block of the source after which it is sent
    sent_ns: int  # predicted
    used_by: int  # block of the target that needs it
    held_until: int  # last block of the target that may still read its buffer


def lower(
    problem: Problem, schedule: Schedule, *, post_ahead_ns: int | None = 0, message_bytes: int | None = None
) -> Plan:
    """The Plan of `schedule` on `problem`, checked to end under rendezvous semantics.

    `post_ahead_ns`: how long before the predicted time of its send a receive is posted at the latest (0: just in time;
    larger: earlier, more buffers); None posts at use, to show the difference. `message_bytes`: size of every message as
    it will really be sent, where that is not what the Problem's costs say.

    Raises FieldError for a schedule that `check` finds at fault (incomplete, over the memory limit, a message order
    that its senders could not keep, ...), Deadlock (with the cycle) where it could never end.
    """
    _check_executable(problem, schedule)
    timeline = simulate(problem, schedule)
    transfers = _transfers(problem, schedule, timeline, message_bytes)
    senders: dict[str, set[int]] = defaultdict(set)
    for transfer in transfers:
        if transfer.wire is not None:
            senders[transfer.wire].add(transfer.source)
    for position in range(problem.positions):
        for kind in ("gather", "reduce"):
            hop = problem.message_hop(kind, position)
            if hop is not None and hop.wire is not None:
                senders[hop.wire].add(problem.place(position)[0])
    plan = Plan(
        schedule_name=schedule.name,
        problem_digest=problem.digest(),
        predicted_makespan_ns=timeline.makespan_ns,
        ranks=tuple(
            _rank_plan(rank, problem, schedule, timeline, transfers, post_ahead_ns) for rank in range(problem.stages)
        ),
        wire_senders={wire: tuple(sorted(ranks)) for wire, ranks in sorted(senders.items())},
    )
    # posted at use, receives may come after sends of the same rank: that ends only because our sends do not block
    check_rendezvous(plan, blocking_sends=post_ahead_ns is not None)
    return plan


def lower_point(session: Session, problem: Problem, schedule: Schedule) -> Plan:
    """`lower` as a session wants it: its messages' real size, its receives as early as it says."""
    return lower(
        problem,
        schedule,
        post_ahead_ns=session.run.post_ahead_ns,
        message_bytes=session.message_format.size_bytes,
    )


def _check_executable(problem: Problem, schedule: Schedule) -> None:
    """FieldError with the first fault that `check` finds; a deadlock is left to `simulate`, which explains it."""
    faults = [v for v in check(problem, schedule) if v.kind not in ("deadlock", "certificate")]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise FieldError(
            "schedule", schedule.name or "unnamed", f"{faults[0]}{more}", "correct the order; crosspipe check lists all"
        )


def _transfers(problem: Problem, schedule: Schedule, timeline: Timeline, message_bytes: int | None) -> list[_Transfer]:
    """All messages between different ranks, sorted by predicted send; a listed order of a wire is kept per sender."""
    made: dict[Message, int] = {}  # index of the block that makes, needs, last reads a message
    used: dict[Message, int] = {}
    held: dict[Message, int] = {}
    for stage, order in enumerate(schedule.orders):
        for i, (kind, chunk, microbatch, _, _) in enumerate(order):
            position = problem.position(stage, chunk)
            from_before, from_after = Message("F", position - 1, microbatch), Message("D", position + 1, microbatch)
            if kind != "W":
                made[Message("D" if kind == "B" else kind, position, microbatch)] = i
                used[from_before if kind == "F" else from_after] = i
            if kind in "WB":  # the weight gradient of a first (last) layer reads what was received
                held[from_before] = held[from_after] = i
    listed = {message: i for order in schedule.messages.values() for i, message in enumerate(order)}
    send_after: dict[tuple[int, str | None], int] = defaultdict(int)
    transfers = []
    for timed in sorted(timeline.messages, key=lambda m: (m.start_ns, listed.get(m.message, 0), in_ready_order(m))):
        kind, position, _ = message = timed.message
        if kind not in ("F", "D"):
            continue  # replicas talk beside the pipeline
        source, chunk = problem.place(position)
        target = problem.place(position + (1 if kind == "F" else -1))[0]
        if source == target:
            continue
        cost = problem.costs[source][chunk]
        size = cost.forward_message_bytes if kind == "F" else cost.backward_message_bytes
        after = made[message]
        if message in listed:  # behind one that becomes ready later, it is held until that one has left
            after = send_after[source, timed.wire] = max(after, send_after[source, timed.wire])
        transfers.append(
            _Transfer(
                message=message,
                source=source,
                target=target,
                wire=timed.wire,
                size_bytes=size if message_bytes is None else message_bytes,
                send_after=after,
                sent_ns=timeline.blocks[source][after].end_ns,
                used_by=used[message],
                held_until=held[message],
            )
        )
    return sorted(transfers, key=lambda t: (t.sent_ns, t.source, t.send_after))


def _rank_plan(
    rank: int,
    problem: Problem,
    schedule: Schedule,
    timeline: Timeline,
    transfers: list[_Transfer],
    post_ahead_ns: int | None,
) -> RankPlan:
    blocks = timeline.blocks[rank]
    waits: dict[int, _Transfer] = {t.used_by: t for t in transfers if t.target == rank}
    sends: dict[int, list[_Transfer]] = defaultdict(list)
    releases: dict[int, list[_Transfer]] = defaultdict(list)
    posts: dict[int, list[_Transfer]] = defaultdict(list)
    channels: dict[int, list[_Transfer]] = defaultdict(list)
    for transfer in transfers:
        if transfer.source == rank:
            sends[transfer.send_after].append(transfer)
        if transfer.target == rank:
            releases[transfer.held_until].append(transfer)
            channels[transfer.source].append(transfer)
    starts = [block.start_ns for block in blocks]
    for channel in channels.values():
        latest = len(blocks)
        for transfer in reversed(channel):  # none may be posted after one that is sent later
            if post_ahead_ns is None:
                index = transfer.used_by
            else:
                index = _last_before(starts, transfer.sent_ns - post_ahead_ns)
            latest = min(latest, index, transfer.used_by)
            posts[latest].append(transfer)
    gathers = [Message("gather", problem.position(rank, chunk), 0) for chunk in range(problem.chunks)]
    gathers = [m for m in sorted(gathers, key=lambda m: m.position) if problem.message_hop(*m[:2]) is not None]
    actions = [Action("gather", None, message) for message in gathers]
    last_weight_grad = {block.chunk: i for i, (block, _, _) in enumerate(blocks) if block.kind in "WB"}
    buffers = _Buffers()
    for i, (block, _, _) in enumerate(blocks):
        for transfer in reversed(posts[i]):
            slot = buffers.take(transfer)
            actions.append(Action("post", None, transfer.message, transfer.source, slot))
        if i in waits:
            transfer = waits[i]
            actions.append(Action("wait", None, transfer.message, transfer.source, buffers.slot[transfer.message]))
        position = problem.position(rank, block.chunk)
        if block.kind == "F" and (gather := Message("gather", position, 0)) in gathers:
            gathers.remove(gather)
            actions.append(Action("gathered", None, gather))
        actions.append(Action("compute", block))
        actions += [Action("send", None, transfer.message, transfer.target) for transfer in sends[i]]
        actions += [Action("release", slot=buffers.give_back(transfer)) for transfer in releases[i]]
        if problem.data_parallel and last_weight_grad.get(block.chunk) == i:
            actions.append(Action("reduce", None, Message("reduce", position, 0)))
    return RankPlan(rank=rank, actions=tuple(actions), slot_bytes=tuple(buffers.sizes))


def _last_before(starts: list[int], time_ns: int) -> int:
    """Index of the last block that starts before `time_ns`; 0 where none does."""
    return max(0, bisect_left(starts, time_ns) - 1)


class _Buffers:
    """Gives each receive the smallest-numbered free slot of its size, a new one only when none is free."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.slot: dict[Message, int] = {}
        self._free: dict[int, list[int]] = defaultdict(list)

    def take(self, transfer: _Transfer) -> int:
        free = self._free[transfer.size_bytes]
        if free:
            slot = heapq.heappop(free)
        else:
            slot = len(self.sizes)
            self.sizes.append(transfer.size_bytes)
        self.slot[transfer.message] = slot
        return slot

    def give_back(self, transfer: _Transfer) -> int:
        slot = self.slot[transfer.message]
        heapq.heappush(self._free[transfer.size_bytes], slot)
        return slot
