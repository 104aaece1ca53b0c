"""The critical path of a Timeline: the chain of blocks, messages and waits that fills it from its start to its end.

It works backwards from the last event to whatever ended last before it, so it needs no Problem and reads predicted and
measured Timelines alike; what nothing explains is a wait. In the terms of LLAMP (Shen et al., SC'24) the site crossings
of the path are the latency sensitivity of the makespan.
"""

from __future__ import annotations

from typing import NamedTuple

from crosspipe.problem.traversal import place_of
from crosspipe.schedule.timeline import PathStep, TimedBlock, TimedMessage, Timeline


class _Cause(NamedTuple):
    """An earlier event (its index) that this one waited for until `until_ns`; of a message the whole, with its latency
    (`arrived`), or only its time on the wire."""

    event: int
    until_ns: int
    arrived: bool = True


class _Event(NamedTuple):
    timed: TimedBlock | TimedMessage
    stage: int
    start_ns: int
    end_ns: int
    crosses_sites: bool
    causes: tuple[_Cause, ...]  # those that ended last


def critical_path(timeline: Timeline) -> tuple[PathStep, ...]:
    """Steps in the order of time, each beginning where the one before ends, from the first event to the last (ns).

    A step is a `block`, a `message` or a `wait`. A message that was served at once is one step from its block's end to
    its arrival; where it queued, the step begins with its service and the message before it on the wire comes before.
    Where several paths are equally long, the one with most site crossings is given: it is the one that a little more
    latency lengthens. `crosses_sites` marks messages whose latency lies on the path.
    """
    events = _events(timeline)
    if not events:
        return ()
    best = _best_causes(events)
    now = max(event.end_ns for event in events)
    ends = [_Cause(i, now) for i, event in enumerate(events) if event.end_ns == now]
    cause: _Cause | None = max(ends, key=lambda c: best[c.event][0] + _crosses(events, c))
    steps: list[PathStep] = []
    waits = ""
    stage = 0
    while cause is not None:
        until = max(cause.until_ns, timeline.start_ns)  # a clock that lags may put it before
        if until < now:
            steps.append(PathStep("wait", waits, stage, until, now))
            now = until
        event = events[cause.event]
        start = min(max(event.start_ns, timeline.start_ns), now)
        step = _step(event, start, now, cause.arrived)
        if step is not None:
            steps.append(step)
        now, stage, waits = start, event.stage, f"stage {event.stage} waits before {event.timed[0]}"
        cause = best[cause.event][1]
    if now > timeline.start_ns:
        steps.append(PathStep("wait", waits, stage, timeline.start_ns, now))
    return tuple(reversed(steps))


def _step(event: _Event, start_ns: int, end_ns: int, arrived: bool) -> PathStep | None:
    """The event as a step of the path; None for a hand-over inside a site that takes no time."""
    if isinstance(event.timed, TimedBlock):
        return PathStep("block", f"{event.timed.block} on stage {event.stage}", event.stage, start_ns, end_ns)
    label = str(event.timed.message)
    if not arrived:
        return PathStep("message", f"{label} occupies wire {event.timed.wire}", event.stage, start_ns, end_ns)
    if start_ns == end_ns and event.timed.wire is None and not event.crosses_sites:
        return None
    return PathStep("message", label, event.stage, start_ns, end_ns, event.crosses_sites)


def _events(timeline: Timeline) -> list[_Event]:
    """All blocks, then all messages, each with the earlier events that ended last among those it had to wait for."""
    blocks = [(block, stage) for stage, row in enumerate(timeline.blocks) for block in row]
    messages = sorted(timeline.messages, key=lambda m: (m.start_ns, m.served_ns, m.ready_ns))
    made: dict[tuple[str, int, int], int] = {}  # (F or D, position, microbatch) -> its block's index
    last_weight_grad: dict[int, int] = {}  # position -> index
    for i, (timed, stage) in enumerate(blocks):
        position = timeline.position(stage, timed.block.chunk)
        if timed.block.kind != "W":
            made["F" if timed.block.kind == "F" else "D", position, timed.block.microbatch] = i
        if timed.block.kind != "F":
            last_weight_grad[position] = i
    received = {  # (kind, receiving position, microbatch) -> its message's index
        (m.message.kind, m.message.position + {"F": 1, "D": -1}.get(m.message.kind, 0), m.message.microbatch): i
        for i, m in enumerate(messages, start=len(blocks))
    }

    def block_ended(index: int | None) -> list[_Cause]:
        return [] if index is None else [_Cause(index, blocks[index][0].end_ns)]

    def arrived(index: int | None) -> list[_Cause]:
        return [] if index is None else [_Cause(index, messages[index - len(blocks)].arrival_ns)]

    events: list[_Event] = []
    for i, (timed, stage) in enumerate(blocks):
        kind, chunk, microbatch = timed.block[:3]
        position = timeline.position(stage, chunk)
        causes = block_ended(i - 1 if i and blocks[i - 1][1] == stage else None)
        if kind != "W":
            sent, source = ("F", position - 1) if kind == "F" else ("D", position + 1)
            causes += arrived(received.get((sent, position, microbatch))) or block_ended(
                made.get((sent, source, microbatch))  # no message was recorded
            )
        if kind == "F":
            causes += arrived(received.get(("gather", position, 0)))
        events.append(_Event(timed, stage, timed.start_ns, timed.end_ns, False, _last(causes)))
    before: dict[str, int] = {}  # wire -> index of its latest message
    for i, message in enumerate(messages, start=len(blocks)):
        kind, position, microbatch = message.message
        maker = last_weight_grad.get(position) if kind == "reduce" else made.get((kind, position, microbatch))
        causes = block_ended(maker)
        start = message.ready_ns
        if message.wire is not None:
            if message.wire in before:
                free = messages[before[message.wire] - len(blocks)].served_ns
                causes.append(_Cause(before[message.wire], free, arrived=False))
                if free > message.ready_ns:
                    start = message.start_ns  # it queued
            before[message.wire] = i
        stage = place_of(timeline.traversal, timeline.stages, position)[0]
        crosses = timeline.crosses_sites(message.message)
        events.append(_Event(message, stage, start, message.arrival_ns, crosses, _last(causes)))
    return events


def _last(causes: list[_Cause]) -> tuple[_Cause, ...]:
    """Those that ended last."""
    latest = max((cause.until_ns for cause in causes), default=0)
    return tuple(cause for cause in causes if cause.until_ns == latest)


def _best_causes(events: list[_Event]) -> list[tuple[int, _Cause | None]]:
    """Per event, the most site crossings of any path of binding causes that leads to its start, and that path's cause.

    Clocks that disagree, and zero-length events, can make a circle of causes; whatever would close one is left out.
    """
    best: dict[int, tuple[int, _Cause | None]] = {}
    opened: set[int] = set()
    for root in range(len(events)):
        stack = [root]
        while stack:
            event = stack[-1]
            causes = events[event].causes
            if event not in opened:
                opened.add(event)
                stack += [c.event for c in causes if c.event not in opened]
                continue
            stack.pop()
            if event not in best:
                known = [(best[c.event][0] + _crosses(events, c), c) for c in causes if c.event in best]
                best[event] = max(known, key=lambda found: found[0], default=(0, None))
    return [best[i] for i in range(len(events))]


def _crosses(events: list[_Event], cause: _Cause) -> bool:
    """Whether waiting for this cause means waiting for a message between sites."""
    return cause.arrived and events[cause.event].crosses_sites
