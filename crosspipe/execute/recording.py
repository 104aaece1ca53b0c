"""From the traces of all ranks to Timelines, iterations and findings: what a run really did, on one clock.

Anchored and raw Timelines are of the same type as a prediction, so that one function compares them. Nothing here talks
to a transport; files are written by the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from crosspipe.execute.plan import Plan
from crosspipe.execute.spec import ANCHORED_FILE, RAW_FILE, RECORD_FILE, Point, Session
from crosspipe.execute.trace import LATE_NS, Trace
from crosspipe.problem import Finding, Problem
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline, in_ready_order, memory_steps
from crosspipe.store import Iteration, Rank, RunRecord, save, write_timelines

LATE_SHARE = 0.01  # of all blocks or messages; more is a finding
GRADIENT_ERROR = 1e-5  # relative, in float32; more is a finding
RAW_DEVIATION = 0.05  # of the makespan by the wall clock from the anchored one; more is a finding
INSIDE_FLOOR = 0.1  # of T_F; inside a site messages take microseconds, and less than this changes no schedule


def timelines(problem: Problem, traces: Sequence[Trace], origin: str) -> tuple[Timeline, Timeline]:
    """(anchored, raw) Timeline of one iteration; `traces[rank]`. Times in ns since the iteration's agreed start.

    Memory is the Problem's accounting along the measured times.
    """
    begin = traces[0].begin_ns
    anchored = [[TimedBlock(b.block, b.start_ns - begin, b.end_ns - begin) for b in t.blocks] for t in traces]
    raw = [[TimedBlock(b.block, b.raw_start_ns - begin, b.raw_end_ns - begin) for b in t.blocks] for t in traces]
    messages: tuple[list[TimedMessage], list[TimedMessage]] = ([], [])
    for m in (m for trace in traces for m in trace.messages):
        hop = problem.message_hop(m.message.kind, m.message.position)
        wire = None if hop is None else hop.wire
        life = (m.ready_ns - begin, m.start_ns - begin, m.served_ns - begin)
        messages[0].append(TimedMessage(m.message, wire, *life, m.arrival_ns - begin))
        messages[1].append(TimedMessage(m.message, wire, *life, m.raw_arrival_ns - begin))
    return (
        _timeline(problem, anchored, messages[0], origin),
        _timeline(problem, raw, messages[1], origin),
    )


def _timeline(problem: Problem, blocks: list[list[TimedBlock]], messages: list[TimedMessage], origin: str) -> Timeline:
    rows = tuple(tuple(row) for row in blocks)
    return Timeline(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        sites=problem.sites,
        blocks=rows,
        messages=tuple(sorted(messages, key=in_ready_order)),
        memory=tuple(memory_steps(problem, row, stage) for stage, row in enumerate(rows)),
        origin=origin,
    )


def iteration(traces: Sequence[Trace], *, warmup: bool) -> Iteration:
    """One iteration as recorded. The norm and the optimizer step count among the blocks that can be late."""
    first = traces[0]
    starts = [b.start_ns for t in traces for b in t.blocks[:1]]
    starts += [m.ready_ns for t in traces for m in t.messages if m.message.kind == "gather"]
    blocks = [b.lateness_ns for t in traces for b in t.blocks]
    blocks += [t.raw_norm_end_ns - t.norm_end_ns for t in traces]
    blocks += [t.raw_step_end_ns - t.step_end_ns - max(0, t.raw_norm_end_ns - t.norm_end_ns) for t in traces]
    messages = [m.lateness_ns for t in traces for m in t.messages]
    late_blocks = [late for late in blocks if late > LATE_NS]
    late_messages = [late for late in messages if late > LATE_NS]
    step_end = max(t.step_end_ns for t in traces)
    norm_end = max(t.norm_end_ns for t in traces)
    raw_blocks = [(b.raw_start_ns, b.raw_end_ns) for t in traces for b in t.blocks]
    return Iteration(
        index=first.index,
        warmup=warmup,
        loss=next(t.loss for t in traces if t.loss is not None),
        gradient_norm=first.gradient_norm,
        makespan_ns=first.blocks_end_ns - min(starts),
        iteration_ns=step_end - min(starts),
        gradient_norm_ns=norm_end - first.blocks_end_ns,
        optimizer_step_ns=step_end - norm_end,
        raw_makespan_ns=max(end for _, end in raw_blocks) - min(start for start, _ in raw_blocks),
        late_blocks=len(late_blocks),
        late_messages=len(late_messages),
        largest_lateness_ns=max(late_blocks + late_messages, default=0),
        total_lateness_ns=sum(late_blocks + late_messages),
    )


def delay_errors(problem: Problem, runs: Sequence[Sequence[Trace]]) -> dict[str, int]:
    """Percentiles in ns of |moment the rank went on - moment the message was to arrive|.

    Over the emulated messages that a rank stood waiting for; one that came while its rank was busy cost nothing and has
    no error. Empty where there is none.
    """
    errors = [
        abs(m.resumed_ns - m.arrival_ns)
        for traces in runs
        for t in traces
        for m in t.messages
        if m.waited_ns < m.arrival_ns and _delay_ns(problem, m.message.kind, m.message.position) > 0
    ]
    if not errors:
        return {}
    p50, p95 = np.percentile(errors, (50, 95))
    return {"p50": round(p50), "p95": round(p95), "max": max(errors), "count": len(errors)}


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
    off = [abs(i.raw_makespan_ns / i.makespan_ns - 1) for i in iterations if i.makespan_ns]
    if off and float(np.median(off)) > RAW_DEVIATION:
        found.append(
            Finding(
                name="anchors_hide_time",
                detail=f"the wall clock's makespan is {100 * float(np.median(off)):.1f} % off the anchored one "
                "(median); do not use the anchored times, raise run.pace",
            )
        )
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


def _gradients(error: float, dtype: str) -> tuple[Finding, ...]:
    """A finding where gradients are further from one process than rounding explains (not judged below float32)."""
    if dtype != "float32" or error <= GRADIENT_ERROR:
        return ()
    detail = (
        f"gradients are {error:.1e} off those of one process (relative); {GRADIENT_ERROR:g} is explained by rounding"
    )
    return (Finding(name="gradients_differ", detail=detail),)


class Result(msgspec.Struct, frozen=True):
    """What one rank hands to rank 0 at the end of a point."""

    traces: tuple[Trace, ...]
    peak_activation_bytes: int
    gradient_relative_error: float | None


def write_point(
    session: Session,
    point: Point,
    problem: Problem,
    plan: Plan,
    results: Sequence[Result],
    ranks: tuple[Rank, ...],
    environment: dict[str, str],
) -> RunRecord:
    """Writes the point's timelines and then its run.json; `results[rank]`."""
    run = session.run
    runs = [[result.traces[i] for result in results] for i in range(run.warmup + run.iterations)]
    iterations = tuple(iteration(traces, warmup=i < run.warmup) for i, traces in enumerate(runs))
    measured = runs[run.warmup :]
    pairs = [timelines(problem, traces, session.origin) for traces in measured]
    errors = [r.gradient_relative_error for r in results if r.gradient_relative_error is not None]
    gradients = _gradients(max(errors, default=0.0), session.model.dtype)
    record = RunRecord(
        problem_digest=plan.problem_digest,
        schedule_name=plan.schedule_name,
        origin=session.origin,
        transport=environment["transport"],
        pace=run.pace,
        predicted_makespan_ns=plan.predicted_makespan_ns,
        predicted_iteration_ns=plan.predicted_makespan_ns
        + max(session.gradient_norm_ns, default=0)
        + max(session.optimizer_step_ns, default=0),
        iterations=iterations,
        peak_activation_bytes=tuple(result.peak_activation_bytes for result in results),
        planned_receive_bytes=plan.receive_bytes,
        gradient_relative_error=max(errors, default=None),
        delay_error_ns=delay_errors(problem, measured) if session.emulate else {},
        messages_sent=sum(t.sent for traces in measured for t in traces),
        findings=findings(problem, measured, iterations[run.warmup :]) + gradients,
        ranks=ranks,
        environment={
            **environment,
            "peak_activation_bytes": "storage tracking of each stage's own order, without messages",
            "real_compute_share": f"{compute_share(measured):.3f}",
        },
    )
    out = Path(point.out)
    out.mkdir(parents=True, exist_ok=True)
    write_timelines(out / ANCHORED_FILE, [anchored for anchored, _ in pairs])
    write_timelines(out / RAW_FILE, [raw for _, raw in pairs])
    save(out / RECORD_FILE, record)
    return record
