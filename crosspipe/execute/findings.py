"""Reasons to distrust a paced or emulated run: what was late, by how much, and whether anchoring hides time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from crosspipe.execute.trace import LATE_NS, Trace
from crosspipe.problem import Finding, Problem
from crosspipe.schedule.order import Message
from crosspipe.store import Iteration

LATE_SHARE = 0.01  # of all blocks or messages; more is a finding
GRADIENT_ERROR = 1e-5  # relative, in float32; more is a finding
RAW_DEVIATION = 0.05  # of the makespan by the wall clock from the anchored one; more is a finding
INSIDE_FLOOR = 0.1  # of T_F; inside a site messages take microseconds, and less than this changes no schedule


def delay_errors(problem: Problem, runs: Sequence[Sequence[Trace]]) -> dict[str, int]:
    """Percentiles in ns of |moment the rank went on - moment the message was to arrive|, over wires between sites.

    Of the messages that a rank stood waiting for; one that came while its rank was busy cost nothing and has no error.
    Inside a site the delay is the real transfer's own. Empty where there is none.
    """
    errors = [
        abs(m.resumed_ns - m.arrival_ns)
        for traces in runs
        for t in traces
        for m in t.messages
        if m.waited_ns < m.arrival_ns and _on_a_wire(problem, m.message)
    ]
    if not errors:
        return {}
    p50, p95 = np.percentile(errors, (50, 95))
    return {"p50": round(p50), "p95": round(p95), "max": max(errors), "count": len(errors)}


def _on_a_wire(problem: Problem, message: Message) -> bool:
    hop = problem.message_hop(message.kind, message.position)
    return hop is not None and hop.wire is not None and hop.delay_ns > 0


def _delay_ns(problem: Problem, kind: str, position: int) -> int:
    hop = problem.message_hop(kind, position)
    return 0 if hop is None else hop.delay_ns


def compute_share(runs: Sequence[Sequence[Trace]]) -> float:
    """Real mathematics as a share of the anchored block time."""
    blocks = [b for traces in runs for t in traces for b in t.blocks]
    total = sum(b.end_ns - b.start_ns for b in blocks)
    return sum(b.computed_ns - b.raw_start_ns for b in blocks) / total if total else 0.0


def findings(problem: Problem, runs: Sequence[Sequence[Trace]], iterations: Sequence[Iteration]) -> tuple[Finding, ...]:
    """Reasons to distrust a paced or emulated run; `runs` and `iterations` are the measured ones, in the same order."""
    found = []
    blocks = sum(len(t.blocks) + 2 for traces in runs for t in traces)
    late = sum(i.late_blocks for i in iterations)
    if late > LATE_SHARE * blocks:
        largest = max(i.largest_lateness_ns for i in iterations)
        found.append(
            Finding(
                name="late_blocks",
                detail=f"{late} of {blocks} blocks ended more than {LATE_NS / 1e6:g} ms after their anchor (largest "
                f"{largest / 1e6:.3g} ms); this machine is too slow or too busy for the pace, raise run.pace",
            )
        )
    found += _late_messages(problem, runs)
    for name in ("raw_makespan_ns", "resimulated_makespan_ns"):
        spans = [(getattr(i, name), i.makespan_ns) for i in iterations if i.makespan_ns]
        off = [abs(span / anchored - 1) for span, anchored in spans if span is not None]
        if off and float(np.median(off)) > RAW_DEVIATION:
            whose = "the wall clock's makespan" if name == "raw_makespan_ns" else "the makespan by the raw durations"
            found.append(
                Finding(
                    name="anchors_hide_time",
                    detail=f"{whose} is {100 * float(np.median(off)):.1f} % off the anchored one (median); do not use "
                    "the anchored times, raise run.pace",
                )
            )
            break
    return tuple(found)


class _Channel(NamedTuple):
    """The messages from one stage to another: how late each came, what one should take; all in ns."""

    source: int
    target: int
    lateness_ns: list[int]
    delay_ns: int

    def late(self, floor_ns: int) -> list[int]:
        """Those later than `floor_ns`; none where they are too few to matter."""
        late = [x for x in self.lateness_ns if x > floor_ns]
        return late if len(late) > LATE_SHARE * len(self.lateness_ns) else []


def _late_messages(problem: Problem, runs: Sequence[Sequence[Trace]]) -> list[Finding]:
    """At most one finding for messages across sites and one for those inside: how many, and the worst channel."""
    channels: dict[tuple[int, int], _Channel] = {}
    for m in (m for traces in runs for t in traces for m in t.messages):
        kind, position, _ = m.message
        if kind not in ("F", "D"):
            continue
        source, target = problem.place(position)[0], problem.place(position + (1 if kind == "F" else -1))[0]
        delay = _delay_ns(problem, kind, position)
        if source != target and delay:
            channel = channels.setdefault((source, target), _Channel(source, target, [], delay))
            channel.lateness_ns.append(m.lateness_ns)
    found = []
    for name, crosses, floor, cause in (
        ("link_slower_than_injected", True, LATE_NS, "the real link cannot stand for this one"),
        (
            "late_messages",
            False,
            max(LATE_NS, round(INSIDE_FLOOR * problem.forward_reference_ns())),
            "the machine is too busy for the pace",
        ),
    ):
        own = [c for c in channels.values() if (problem.sites[c.source] != problem.sites[c.target]) == crosses]
        late = [(c, lateness) for c in own if (lateness := c.late(floor))]
        if late:
            count, total = sum(len(lateness) for _, lateness in late), sum(len(c.lateness_ns) for c in own)
            worst, lateness = max(late, key=lambda pair: max(pair[1]))
            detail = (
                f"{count} of {total} messages {'across sites' if crosses else 'inside a site'} came more than "
                f"{floor / 1e6:.3g} ms late; worst from stage {worst.source} to {worst.target}, "
                f"{max(lateness) / 1e6:.3g} ms beyond the {worst.delay_ns / 1e6:.3g} ms it should take; {cause}"
            )
            found.append(Finding(name=name, detail=detail))
    return found


def gradient_findings(error: float, dtype: str) -> tuple[Finding, ...]:
    """A finding where gradients are further from one process than rounding explains (not judged below float32)."""
    if dtype != "float32" or error <= GRADIENT_ERROR:
        return ()
    detail = (
        f"gradients are {error:.1e} off those of one process (relative); {GRADIENT_ERROR:g} is explained by rounding"
    )
    return (Finding(name="gradients_differ", detail=detail),)
