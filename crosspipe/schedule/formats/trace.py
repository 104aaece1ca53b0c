"""Timelines as a trace in Chrome's event format, for https://ui.perfetto.dev and chrome://tracing.

A stage is a process with its blocks and a counter of the activations it holds; wires are one more process, a thread
each, that shows what occupies them; arrows lead from a block over its wire to the block that needs its output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from crosspipe.problem.traversal import place_of
from crosspipe.schedule.timeline import TimedBlock, Timeline

Event = dict[str, Any]


def trace_json(timelines: Mapping[str, Timeline]) -> str:
    """A JSON trace of the timelines, each under its heading, each from its own first event. Times in µs, as the format
    has them, exact to the ns."""
    events: list[Event] = []
    first_process = 0
    for heading, timeline in timelines.items():
        events += _trace(f"{heading} " if heading else "", timeline, first_process)
        first_process += timeline.stages + 1
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _trace(prefix: str, timeline: Timeline, first: int) -> Iterator[Event]:
    """One timeline; its processes count from `first`."""
    wires = {wire: i for i, wire in enumerate(sorted({m.wire for m in timeline.messages if m.wire is not None}))}
    for stage in range(timeline.stages):
        yield from _named(first + stage, f"{prefix}stage {stage} (site {timeline.sites[stage]})", {0: "blocks"})
    if wires:
        yield from _named(first + timeline.stages, f"{prefix}wires", {i: f"wire {wire}" for wire, i in wires.items()})
    needs: dict[tuple[str, int, int], tuple[int, TimedBlock]] = {}  # message -> the block that receives it
    makes: dict[tuple[str, int, int], tuple[int, TimedBlock]] = {}
    for stage, row in enumerate(timeline.blocks):
        for timed in row:
            block = timed.block
            position = timeline.position(stage, block.chunk)
            kind = "F" if block.kind == "F" else "D"
            if block.kind != "W":
                makes[kind, position, block.microbatch] = (stage, timed)
                needs[kind, position + (-1 if kind == "F" else 1), block.microbatch] = (stage, timed)
            name = f"{block.kind}{block.microbatch}" + (f" chunk {block.chunk}" if timeline.chunks > 1 else "")
            yield {
                **_slice(timeline, first + stage, 0, name, timed.start_ns, timed.end_ns),
                "cat": block.kind,
                "args": block._asdict(),
            }
    for stage, steps in enumerate(timeline.memory):
        for time, held in steps:
            yield {**_event(timeline, "C", first + stage, "activations", time), "args": {"bytes": held}}
    for number, message in enumerate(timeline.messages):
        kind, position = message.message[:2]
        wire = None if message.wire is None else wires[message.wire]
        if wire is not None:
            track = (first + timeline.stages, wire)
            yield {
                **_slice(timeline, *track, str(message.message), message.start_ns, message.served_ns),
                "cat": "message",
                "args": {
                    "ready_us": _us(timeline, message.ready_ns),
                    "arrival_us": _us(timeline, message.arrival_ns),
                    "from_stage": place_of(timeline.traversal, timeline.stages, position)[0],
                },
            }
        maker, receiver = makes.get(message.message), needs.get(message.message)
        if maker is None or receiver is None or maker[0] == receiver[0]:
            continue
        arrow = {"cat": "message", "id": first * 1_000_000 + number}
        yield {**_event(timeline, "s", first + maker[0], kind, maker[1].start_ns), **arrow}
        if wire is not None:
            yield {**_event(timeline, "t", first + timeline.stages, kind, message.start_ns, wire), **arrow}
        yield {**_event(timeline, "f", first + receiver[0], kind, receiver[1].start_ns), **arrow, "bp": "e"}


def _named(process: int, name: str, threads: dict[int, str]) -> Iterator[Event]:
    """What a process and its threads are called, in the order to show them."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for thread, title in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": title}}


def _event(timeline: Timeline, phase: str, process: int, name: str, time_ns: int, thread: int = 0) -> Event:
    return {"ph": phase, "name": name, "pid": process, "tid": thread, "ts": _us(timeline, time_ns)}


def _slice(timeline: Timeline, process: int, thread: int, name: str, start_ns: int, end_ns: int) -> Event:
    return {**_event(timeline, "X", process, name, start_ns, thread), "dur": (end_ns - start_ns) / 1000}


def _us(timeline: Timeline, time_ns: int) -> float:
    return (time_ns - timeline.start_ns) / 1000
