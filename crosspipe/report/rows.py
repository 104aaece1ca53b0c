"""Rows of the tidy results: what one point, and one iteration of it, say as columns.

Only values that the artifacts hold or that follow from them exactly; a value that is not known stays out of the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crosspipe.problem import BlockCosts, Problem
from crosspipe.problem.spread import spread
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.schedule import Schedule
from crosspipe.store.campaign_file import CampaignPoint, Label
from crosspipe.store.records import RunRecord

MIB = 2**20
_DELAY_LABELS = ("latency_ratio", "bandwidth_ratio")


def varying_labels(points: Sequence[CampaignPoint]) -> tuple[str, ...]:
    """Labels, beside schedule and delay, that take more than one value in the campaign."""
    names = dict.fromkeys(name for p in points for name in p.labels)
    others = [n for n in names if not n.startswith(("schedule", "network")) and n not in _DELAY_LABELS]
    return tuple(n for n in others if len({p.labels.get(n) for p in points}) > 1)


def point_row(artifacts: PointArtifacts, varying: Sequence[str]) -> dict[str, Any]:
    """The columns known of one point; `varying` names the labels that make its setting."""
    labels, keys = artifacts.point.labels, artifacts.point.keys
    row: dict[str, Any] = {
        "point": artifacts.point.name,
        "status": artifacts.status,
        "reason": artifacts.reason,
        "schedule": _schedule(labels),
        "delay": _delay(labels),
        "setting": ", ".join(f"{name}={_text(labels.get(name))}" for name in varying),
        "model": _text(labels.get("model")),
        "network": _text(labels.get("network")),
        "latency_ratio": labels.get("latency_ratio"),
        "bandwidth_ratio": labels.get("bandwidth_ratio"),
        "pace": labels.get("pace"),
    }
    row |= {f"{stage}_key": keys.get(stage) for stage in ("links", "blocks", "solve", "run")}
    if artifacts.problem is not None:
        row |= _problem_values(artifacts.problem, row)
    if artifacts.schedule is not None:
        row |= _schedule_values(artifacts.schedule, artifacts.problem)
    if artifacts.run is not None:
        row |= _run_values(artifacts.run)
    elif artifacts.blocks is not None and row.get("predicted_makespan_ms") is not None:
        after_ms = _after_ms(artifacts.blocks, row["pace"] or 1.0)
        row["predicted_iteration_ms"] = None if after_ms is None else row["predicted_makespan_ms"] + after_ms
    return row


def _after_ms(blocks: BlockCosts, pace: float) -> float | None:
    """Gradient norm and optimizer step of the slowest stage, at the pace of the run to come, in ms; None if unknown."""
    if not blocks.gradient_norm_ns or not blocks.optimizer_step_ns:
        return None
    return pace * (max(blocks.gradient_norm_ns, default=0) + max(blocks.optimizer_step_ns, default=0)) / 1e6


def _problem_values(problem: Problem, row: dict[str, Any]) -> dict[str, Any]:
    crossing = [problem.forward_hops[k] for k in range(problem.positions - 1) if problem.crosses_sites("F", k)]
    crossing += [problem.backward_hops[k] for k in range(problem.positions - 1) if problem.crosses_sites("D", k + 1)]
    latency = max((hop.latency_ns for hop in crossing), default=0)
    serialisation = max((hop.serialisation_ns for hop in crossing), default=0)
    reference = problem.forward_reference_ns()
    ratios = {"latency_ratio": latency, "bandwidth_ratio": serialisation} if reference else {}
    limits = [limit for limit in problem.activation_limit_bytes if limit is not None]
    return {
        "traversal": problem.traversal,
        "stages": problem.stages,
        "chunks": problem.chunks,
        "sites": len(set(problem.sites)),
        "microbatches": problem.microbatches,
        "latency_ms": latency / 1e6,
        "serialisation_ms": serialisation / 1e6,
        "forward_reference_ms": reference / 1e6,
        "activation_limit_mib": min(limits) / MIB if limits else None,
    } | {name: value / reference for name, value in ratios.items() if row[name] is None}


def _schedule_values(schedule: Schedule, problem: Problem | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    certificate, provenance = schedule.certificate, schedule.provenance
    if certificate is not None:
        values |= {
            "predicted_makespan_ms": certificate.makespan_ns / 1e6,
            "lower_bound_ms": certificate.lower_bound_ns / 1e6,
            "gap_percent": certificate.gap * 100,
            "proven_by": certificate.proven_by,
        }
    if provenance is not None:
        values |= {"solver_method": provenance.method, "solver_wall_s": provenance.wall_s}
    if problem is not None:
        busy_ns, peak_bytes = _busy_and_peak(problem, schedule)
        values["predicted_peak_activation_mib"] = peak_bytes / MIB
        if certificate is not None and certificate.makespan_ns:
            values["predicted_bubble_ratio"] = 1 - busy_ns / (problem.stages * certificate.makespan_ns)
    return values


def _busy_and_peak(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """Busy time of all stages together in ns, and the largest activation memory of any in bytes.

    The order alone decides both. The loop is the hottest of loading a campaign: each kind of block is looked up once.
    """
    busy = peak = 0
    for costs, order in zip(problem.costs, schedule.orders, strict=True):
        known: dict[tuple[str, int, int, int], tuple[int, int, int]] = {}
        held = 0
        for kind, chunk, _, piece, pieces in order:
            which = (kind, chunk, piece, pieces)
            if which not in known:
                cost = costs[chunk]
                take = 0 if piece else cost.take_bytes(kind)
                release = cost.release_bytes(kind, piece, pieces)
                known[which] = (cost.duration_ns(kind, piece, pieces), take, release)
            duration, take, release = known[which]
            busy += duration
            held += take
            if held > peak:
                peak = held
            held -= release
    return busy, peak


def _run_values(run: RunRecord) -> dict[str, Any]:
    measured = run.measured
    values: dict[str, Any] = {
        "origin": run.origin,
        "transport": run.transport,
        "pace": run.pace,
        "predicted_makespan_ms": run.predicted_makespan_ns / 1e6,
        "predicted_iteration_ms": run.predicted_iteration_ns / 1e6,
        "measured_iterations": len(measured),
        "gradient_relative_error": run.gradient_relative_error,
        "measured_peak_activation_mib": max(run.peak_activation_bytes) / MIB if run.peak_activation_bytes else None,
        "planned_receive_mib": max(run.planned_receive_bytes) / MIB if run.planned_receive_bytes else None,
        "delay_error_p50_ms": run.delay_error_ns["p50"] / 1e6 if "p50" in run.delay_error_ns else None,
        "delay_error_p95_ms": run.delay_error_ns["p95"] / 1e6 if "p95" in run.delay_error_ns else None,
    }
    if run.iterations:
        values |= {"loss_first": run.iterations[0].loss, "loss_last": run.iterations[-1].loss}
    if measured:
        iteration = spread(i.iteration_ns / 1e6 for i in measured)
        makespan = spread(i.makespan_ns / 1e6 for i in measured)
        raw = spread(i.raw_makespan_ns / 1e6 for i in measured)
        values |= {
            "measured_makespan_ms": makespan.median,
            "measured_iteration_ms": iteration.median,
            "measured_iteration_low_ms": iteration.low,
            "measured_iteration_high_ms": iteration.high,
            "measured_iteration_minimum_ms": min(i.iteration_ns for i in measured) / 1e6,
            "makespan_error_percent": percent_of(makespan.median, values["predicted_makespan_ms"]),
            "error_percent": percent_of(iteration.median, values["predicted_iteration_ms"]),
            "late_blocks": sum(i.late_blocks for i in measured),
            "late_messages": sum(i.late_messages for i in measured),
            "largest_lateness_ms": max(i.largest_lateness_ns for i in measured) / 1e6,
            "raw_makespan_ms": raw.median,
        }
    return values


def iteration_rows(artifacts: PointArtifacts) -> Iterator[dict[str, Any]]:
    """A row per iteration of the run, warm-up included."""
    for i in artifacts.run.iterations if artifacts.run is not None else ():
        yield {
            "point": artifacts.point.name,
            "schedule": _schedule(artifacts.point.labels),
            "iteration": i.index,
            "warmup": i.warmup,
            "makespan_ms": i.makespan_ns / 1e6,
            "iteration_ms": i.iteration_ns / 1e6,
            "gradient_norm_ms": i.gradient_norm_ns / 1e6,
            "optimizer_step_ms": i.optimizer_step_ns / 1e6,
            "raw_makespan_ms": i.raw_makespan_ns / 1e6,
            "late_blocks": i.late_blocks,
            "late_messages": i.late_messages,
            "largest_lateness_ms": i.largest_lateness_ns / 1e6,
            "total_lateness_ms": i.total_lateness_ns / 1e6,
            "loss": i.loss,
            "gradient_norm": i.gradient_norm,
        }


def groups(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """`rows` by setting and delay."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["setting"], row["delay"]), []).append(row)
    return list(found.values())


def percent_of(value: float, reference: float) -> float | None:
    """How far `value` is from `reference`, in percent of it; None where that is zero."""
    return (value / reference - 1) * 100 if reference else None


def _schedule(labels: dict[str, Label]) -> str:
    """The schedule's name, with its own options where they vary: `cross_ud_sub pieces=4`."""
    options = [f"{n.removeprefix('schedule.')}={_text(v)}" for n, v in labels.items() if n.startswith("schedule.")]
    return " ".join([_text(labels.get("schedule")), *options])


def _delay(labels: dict[str, Label]) -> str:
    latency, bandwidth = labels.get("latency_ratio"), labels.get("bandwidth_ratio")
    if latency is not None or bandwidth is not None:
        return f"({_text(latency or 0)}, {_text(bandwidth or 0)})"
    others = {n: v for n, v in labels.items() if n.startswith("network.")}
    words = [_text(labels["network"])] if labels.get("network") is not None else []
    return ", ".join(words + [f"{n.removeprefix('network.')}={_text(v)}" for n, v in others.items()]) or "as given"


def _text(value: Label) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
