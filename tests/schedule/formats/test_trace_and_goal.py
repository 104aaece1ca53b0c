"""Traces and GOAL files, read back by a reader written from their specifications."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from crosspipe.problem import DataParallel, Hop, Problem
from crosspipe.schedule import Block, Schedule, simulate
from crosspipe.schedule.formats import goal_text, trace_json, write


def problem(**changes) -> Problem:
    made = Problem.uniform(
        stages=2, microbatches=2, sites=2, forward_ms=1, input_grad_ms=2, weight_grad_ms=3, latency_ms=7
    )
    return msgspec.structs.replace(made, **changes)


def schedule() -> Schedule:
    row = tuple(Block(kind, 0, mb) for mb in range(2) for kind in "FDW")
    return Schedule(name="two", traversal="ud", stages=2, chunks=1, microbatches=2, orders=(row, row))


def test_trace_holds_every_block_message_and_memory_step(tmp_path):
    timeline = simulate(problem(), schedule())
    write(tmp_path / "a.trace.json", schedule(), problem())
    trace = json.loads((tmp_path / "a.trace.json").read_text())
    events = trace["traceEvents"]
    blocks = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["cat"] in "FDW"]
    # stage 0: F0 0-1 ms; message of 7; stage 1: F0 8-9, D0 9-11, W0 11-14; D0 back at 18
    assert blocks[:3] == [(0, "F0", 0, 1000), (0, "D0", 18000, 2000), (0, "W0", 20000, 3000)]
    assert len(blocks) == 12
    counters = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["pid"] == 0]
    assert counters[:3] == [(0, 2**20), (20000, 2**19), (23000, 0)]
    on_wires = [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "message"]
    assert sorted(on_wires) == sorted(str(m.message) for m in timeline.messages)
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {"stage 0 (site 0)", "stage 1 (site 1)", "wires"}


def test_arrows_lead_from_block_over_wire_to_block():
    events = json.loads(
        trace_json({"predicted": simulate(problem(), schedule()), "again": simulate(problem(), schedule())})
    )
    arrows: dict[int, list] = {}
    for event in events["traceEvents"]:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append(event)
    assert len(arrows) == 8  # two messages each way in each timeline
    slices = [e for e in events["traceEvents"] if e["ph"] == "X"]
    for steps in arrows.values():
        assert [e["ph"] for e in steps] == ["s", "t", "f"]
        assert [e["ts"] for e in steps] == sorted(e["ts"] for e in steps)
        for step in steps:  # an arrow binds to the slice that encloses it
            assert any(
                (x["pid"], x["tid"]) == (step["pid"], step["tid"]) and x["ts"] <= step["ts"] <= x["ts"] + x["dur"]
                for x in slices
            )


class Goal:
    """GOAL as LogGOPSim's txt2bin reads it, run with o = g = 0: L + G*bytes, one message at a time per sender."""

    LINE = re.compile(
        r"(?P<label>[a-z][a-z0-9_]*): (?:calc (?P<ns>\d+)(?: cpu (?P<cpu>\d+))?"
        r"|send (?P<out>\d+)b to (?P<to>\d+) tag (?P<out_tag>\d+)"
        r"|recv (?P<size>\d+)b from (?P<source>\d+) tag (?P<tag>\d+))"
        r"|(?P<later>[a-z][a-z0-9_]*) requires (?P<earlier>[a-z][a-z0-9_]*)"
    )

    def __init__(self, text: str) -> None:
        self.ops: dict[tuple[int, str], re.Match] = {}
        self.needs: dict[tuple[int, str], list[tuple[int, str]]] = {}
        self.senders: dict[tuple[int, int, int], tuple[int, str]] = {}  # (from, to, tag)
        rank = None
        for line in text.splitlines():
            if not line or line.startswith("//"):
                continue
            if match := re.fullmatch(r"num_ranks (\d+)", line):
                self.ranks = int(match[1])
            elif match := re.fullmatch(r"rank (\d+) \{", line):
                rank = int(match[1])
            elif line == "}":
                rank = None
            else:
                match = self.LINE.fullmatch(line)
                assert match is not None, line
                assert rank is not None
                if match["later"]:
                    self.needs[rank, match["later"]].append((rank, match["earlier"]))
                else:
                    self.ops[rank, match["label"]] = match
                    self.needs[rank, match["label"]] = []
                    if match["out"]:
                        self.senders[rank, int(match["to"]), int(match["out_tag"])] = (rank, match["label"])

    def end(self, latency: int, gap: int) -> int:
        ends: dict[tuple[int, str], int] = {}
        arrivals: dict[tuple[int, str], int] = {}
        free = [0] * self.ranks
        while len(ends) < len(self.ops):
            ready = []
            for op, match in self.ops.items():
                needs = list(self.needs[op])
                if op in ends or any(n not in ends for n in needs):
                    continue
                start = max((ends[n] for n in needs), default=0)
                if match["source"]:
                    sender = self.senders[int(match["source"]), op[0], int(match["tag"])]
                    if sender not in arrivals:
                        continue
                    assert self.ops[sender]["out"] == match["size"]
                    start = max(start, arrivals[sender])
                ready.append((start, op, match))
            start, op, match = min(ready, key=lambda r: (r[0], r[1]))
            ends[op] = start + int(match["ns"] or 0)
            if match["out"]:
                begin = max(start, free[op[0]])
                free[op[0]] = begin + gap * int(match["out"])
                arrivals[op] = free[op[0]] + latency
        return max(ends.values())


@pytest.mark.parametrize("serialisation_ms", [0, 2])
def test_goal_takes_as_long_as_our_model(serialisation_ms):
    two = Problem.uniform(
        stages=2,
        microbatches=2,
        sites=2,
        forward_ms=1,
        input_grad_ms=2,
        weight_grad_ms=3,
        latency_ms=7,
        serialisation_ms=serialisation_ms,
    )
    rows = (
        tuple(Block(word[0], 0, int(word[1])) for word in ["F0", "F1", "D0", "W0", "D1", "W1"]),
        tuple(Block(word[0], 0, int(word[1])) for word in ["F0", "D0", "F1", "D1", "W0", "W1"]),
    )
    order = msgspec.structs.replace(schedule(), orders=rows)
    text = goal_text(two, order)
    assert "simulate with -L 7000000 -o 0 -g 0" in text
    assert Goal(text).end(latency=7_000_000, gap=1) == simulate(two, order).makespan_ns


def test_goal_states_bytes_where_the_problem_does():
    cost = msgspec.structs.replace(problem().costs[0][0], forward_message_bytes=64, backward_message_bytes=32)
    text = goal_text(problem(costs=((cost,), (cost,))), schedule())
    assert "// message sizes are bytes" in text
    assert "s0: send 64b to 1 tag 0" in text
    assert "r0: recv 64b from 0 tag 0" in text
    assert "recv 32b from 1" in text


def test_goal_shows_gather_and_reduce_beside_the_blocks():
    replica = DataParallel(reduce=Hop(latency_ns=5, serialisation_ns=1), gather=Hop(latency_ns=3))
    text = goal_text(problem(data_parallel=((replica,), (replica,))), schedule())
    lines = text.splitlines()
    assert lines.count("g0: calc 3 cpu 1") == 2
    assert lines.count("b0 requires g0") == 2
    assert lines.count("a5: calc 6 cpu 1") == 2
    assert lines.count("a5 requires b5") == 2
