"""From the traces of all ranks to Timelines, iterations and findings: what a run really did, on one clock.

Anchored and raw Timelines are of the same type as a prediction, so that one function compares them. Nothing here talks
to a transport; files are written by the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from crosspipe.execute.attribution import excess
from crosspipe.execute.comparison import write_comparison
from crosspipe.execute.dependencies import needed
from crosspipe.execute.findings import compute_share, delay_errors, findings, gradient_findings
from crosspipe.execute.plan import Plan
from crosspipe.execute.replication import of_one_pipeline
from crosspipe.execute.resimulation import resimulate
from crosspipe.execute.spec import ANCHORED_FILE, COMPARISON_FILE, RAW_FILE, RECORD_FILE, Point, Session
from crosspipe.execute.trace import LATE_NS, Trace
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline, in_ready_order, memory_steps
from crosspipe.store import Iteration, Rank, RunRecord, Swap, load, save, write_timelines


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


def iteration(
    problem: Problem, traces: Sequence[Trace], predicted_ns: int, *, warmup: bool, everyone: Sequence[Trace] = ()
) -> Iteration:
    """One iteration as recorded; `predicted_ns` is the predicted makespan of the plan that ran.

    `traces` are of one pipeline, `everyone` are those of all replicas (empty: there is one): what was late and how long
    it took is over all of them, the critical path is the pipeline's. The norm and the optimizer step count among the
    blocks that can be late.
    """
    first, everyone = traces[0], everyone or traces
    _, raw = timelines(problem, traces, "")
    # a paced block that waited to begin has lost nothing yet, it is late by how late it ends
    came = {m.message: m.raw_arrival_ns for t in traces for m in t.messages}
    spans = [
        [
            TimedBlock(b.block, start - t.begin_ns, b.raw_end_ns - t.begin_ns)
            for b in t.blocks
            for start in [max(b.start_ns, came.get(needed(problem, rank, b.block), 0))]
        ]
        for rank, t in enumerate(traces)
    ]
    measured = _timeline(problem, spans, list(raw.messages), "")
    gathered = [m.ready_ns for t in everyone for m in t.messages if m.message.kind == "gather"]
    reduced = [m.raw_arrival_ns for t in everyone for m in t.messages if m.message.kind == "reduce"]
    start = min([*gathered, *(b.start_ns for t in everyone for b in t.blocks[:1])])
    raw_start = min([*gathered, *(b.raw_start_ns for t in everyone for b in t.blocks[:1])])
    raw_end = max([*reduced, *(b.raw_end_ns for t in everyone for b in t.blocks[-1:])])
    blocks = [b.lateness_ns for t in everyone for b in t.blocks]
    blocks += [t.raw_norm_end_ns - t.norm_end_ns for t in everyone]
    blocks += [t.raw_step_end_ns - t.step_end_ns - max(0, t.raw_norm_end_ns - t.norm_end_ns) for t in everyone]
    messages = [m.lateness_ns for t in everyone for m in t.messages]
    late_blocks = [late for late in blocks if late > LATE_NS]
    late_messages = [late for late in messages if late > LATE_NS]
    step_end = max(t.step_end_ns for t in everyone)
    norm_end = max(t.norm_end_ns for t in everyone)
    return Iteration(
        index=first.index,
        warmup=warmup,
        loss=next(t.loss for t in traces if t.loss is not None),
        gradient_norm=first.gradient_norm,
        makespan_ns=first.blocks_end_ns - start,
        iteration_ns=step_end - start,
        gradient_norm_ns=norm_end - first.blocks_end_ns,
        optimizer_step_ns=step_end - norm_end,
        raw_makespan_ns=raw_end - raw_start,
        late_blocks=len(late_blocks),
        late_messages=len(late_messages),
        largest_lateness_ns=max(late_blocks + late_messages, default=0),
        total_lateness_ns=sum(late_blocks + late_messages),
        resimulated_makespan_ns=resimulate(problem, traces),
        excess_ns=excess(problem, traces, measured, predicted_ns),
    )


class Result(msgspec.Struct, frozen=True):
    """What one rank hands to rank 0 at the end of a point, beside the traces in its file."""

    peak_activation_bytes: int
    gradient_relative_error: float | None


def write_point(
    session: Session,
    point: Point,
    problem: Problem,
    plan: Plan,
    traces: Sequence[Sequence[Trace]],
    results: Sequence[Result],
    ranks: tuple[Rank, ...],
    environment: dict[str, str],
    *,
    swaps: Sequence[Swap] = (),
) -> RunRecord:
    """Writes the point's timelines, their comparison with the prediction, and then its run.json.

    `traces[rank][i]` and `results[rank]` are of all ranks.
    """
    out = Path(point.out)
    errors = [r.gradient_relative_error for r in results if r.gradient_relative_error is not None]
    record, pairs = build_record(session, problem, plan, traces, swaps)
    record = msgspec.structs.replace(
        record,
        peak_activation_bytes=tuple(result.peak_activation_bytes for result in results[: problem.stages]),
        gradient_relative_error=max(errors, default=None),
        findings=record.findings + gradient_findings(max(errors, default=0.0), session.model.dtype),
        ranks=ranks,
        environment={
            **record.environment,
            **environment,
            "peak_activation_bytes": "storage tracking of each stage's own order, without messages",
        },
    )
    out.mkdir(parents=True, exist_ok=True)
    write_timelines(out / ANCHORED_FILE, [anchored for anchored, _ in pairs])
    write_timelines(out / RAW_FILE, [raw for _, raw in pairs])
    measured = list(zip(*of_one_pipeline(traces, problem.stages), strict=True))[session.run.warmup :]
    write_comparison(out / COMPARISON_FILE, problem, load(point.schedule, Schedule), measured)
    save(out / RECORD_FILE, record)
    return record


def build_record(
    session: Session, problem: Problem, plan: Plan, traces: Sequence[Sequence[Trace]], swaps: Sequence[Swap] = ()
) -> tuple[RunRecord, list[tuple[Timeline, Timeline]]]:
    """What follows from `traces[rank][i]`, and the (anchored, raw) Timelines of the iterations after the warm-up.

    With replicas, timelines are those of the first, losses means over all, and what was late is counted on all ranks.

    `plan` is the one that ran first. Iterations that are not there on every rank are left out.
    """
    run = session.run
    runs = list(zip(*of_one_pipeline(traces, problem.stages), strict=False))
    everyone = list(zip(*traces, strict=False))
    taken = [s for s in swaps if s.refused is None]

    def predicted_ns(index: int) -> int:
        return [plan.predicted_makespan_ns, *(s.predicted_makespan_ns for s in taken if s.iteration <= index)][-1]

    iterations = tuple(
        iteration(problem, row, predicted_ns(row[0].index), warmup=i < run.warmup, everyone=all_ranks)
        for i, (row, all_ranks) in enumerate(zip(runs, everyone, strict=True))
    )
    measured, of_all = runs[run.warmup :], everyone[run.warmup :]
    record = RunRecord(
        problem_digest=plan.problem_digest,
        schedule_name=plan.schedule_name,
        origin=session.origin,
        transport=run.transport,
        pace=run.pace,
        predicted_makespan_ns=plan.predicted_makespan_ns,
        predicted_iteration_ns=plan.predicted_makespan_ns
        + max(session.gradient_norm_ns, default=0)
        + max(session.optimizer_step_ns, default=0),
        iterations=iterations,
        planned_receive_bytes=plan.receive_bytes,
        delay_error_ns=delay_errors(problem, of_all) if session.emulate else {},
        messages_sent=sum(t.sent for row in measured for t in row),
        swaps=tuple(swaps),
        findings=findings(problem, of_all, iterations[run.warmup :]),
        environment={"transport": run.transport, "real_compute_share": f"{compute_share(measured):.3f}"},
    )
    return record, [timelines(problem, row, session.origin) for row in measured]
