"""Tidy results: one row per point and one per (point, iteration), with the columns of `crosspipe.report.columns`.

Every point of the campaign has its row, also where it failed, was blocked or has not run yet; the row says why. Nothing
is averaged over points, and a schedule is only compared with others of the same setting and delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from crosspipe.errors import ArtifactError
from crosspipe.problem import BlockCosts, Finding, Problem
from crosspipe.report.artifacts import ArtifactReader, PointArtifacts, load_campaign
from crosspipe.report.columns import ITERATION_COLUMNS, POINT_COLUMNS, Column
from crosspipe.report.findings import point_findings
from crosspipe.report.statistics import median
from crosspipe.schedule import Schedule, TimedBlock
from crosspipe.schedule.timeline import memory_steps
from crosspipe.store.campaign_file import CampaignFile, CampaignPoint, Label
from crosspipe.store.records import RunRecord
from crosspipe.store.store import Store

# fixed by their authors before the delay is known; every other schedule here is searched for its Problem
STATIC_SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zbh1", "zbh2", "zbv", "v_half", "v_min")

MIB = 2**20
_TYPES = {"text": pl.String, "integer": pl.Int64, "number": pl.Float64, "truth": pl.Boolean}
_DELAY_LABELS = ("latency_ratio", "bandwidth_ratio")


@dataclass(frozen=True)
class Results:
    """A campaign as tables: `points` and `iterations` (polars, columns as in the data dictionary), what was read to
    make them (`artifacts` by point, in the campaign's order) and every reason to distrust them (`findings`)."""

    campaign: CampaignFile
    campaign_dir: Path
    store_root: Path
    artifacts: dict[str, PointArtifacts]
    points: pl.DataFrame
    iterations: pl.DataFrame
    findings: tuple[Finding, ...]


def load_results(campaign_dir: str | Path, store_root: str | Path | None = None) -> Results:
    """Everything that has finished of the campaign in `campaign_dir`; `store_root` defaults to the campaign's own.

    Raises ArtifactError if the directory holds no campaign or the store is missing; an unreadable artifact only fails
    its own points.
    """
    campaign_dir = Path(campaign_dir)
    campaign = load_campaign(campaign_dir)
    store = Store(campaign.store if store_root is None else store_root)
    if not store.root.is_dir():
        raise ArtifactError(f"{store.root}: the campaign's store is not here; give the folder it is in now")
    reader = ArtifactReader(campaign_dir, store, campaign)
    artifacts = {point.name: reader.read(point) for point in campaign.points}
    varying = _varying_labels(campaign.points)
    rows = [_point_row(a, varying) for a in artifacts.values()]
    _compare(rows)
    return Results(
        campaign=campaign,
        campaign_dir=campaign_dir,
        store_root=store.root,
        artifacts=artifacts,
        points=_frame(rows, POINT_COLUMNS),
        iterations=_frame([row for a in artifacts.values() for row in _iteration_rows(a)], ITERATION_COLUMNS),
        findings=tuple(
            dict.fromkeys(f for a, row in zip(artifacts.values(), rows, strict=True) for f in point_findings(a, row))
        ),
    )


def dictionary() -> pl.DataFrame:
    """The data dictionary as a table: which file, column, unit, meaning."""
    files = {"results": POINT_COLUMNS, "iterations": ITERATION_COLUMNS}
    rows = [(file, c.name, c.kind, c.unit, c.meaning) for file, columns in files.items() for c in columns]
    return pl.DataFrame(rows, schema=["table", "column", "kind", "unit", "meaning"], orient="row")


def write_results(results: Results, folder: Path) -> tuple[Path, ...]:
    """Writes results and iterations as Parquet and CSV, and the data dictionary as CSV; returns the paths."""
    written = []
    for name, frame in (("results", results.points), ("iterations", results.iterations)):
        frame.write_parquet(folder / f"{name}.parquet")
        frame.write_csv(folder / f"{name}.csv")
        written += [folder / f"{name}.parquet", folder / f"{name}.csv"]
    dictionary().write_csv(folder / "dictionary.csv")
    return (*written, folder / "dictionary.csv")


def _frame(rows: Sequence[dict[str, Any]], columns: Iterable[Column]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={c.name: _TYPES[c.kind] for c in columns}, orient="row")


def _varying_labels(points: Sequence[CampaignPoint]) -> tuple[str, ...]:
    """Labels, beside schedule and delay, that take more than one value in the campaign."""
    names = dict.fromkeys(name for p in points for name in p.labels)
    others = [n for n in names if not n.startswith(("schedule", "network")) and n not in _DELAY_LABELS]
    return tuple(n for n in others if len({p.labels.get(n) for p in points}) > 1)


def _point_row(artifacts: PointArtifacts, varying: Sequence[str]) -> dict[str, Any]:
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
        row["predicted_iteration_ms"] = row["predicted_makespan_ms"] + _after_ms(artifacts.blocks, row["pace"] or 1.0)
    return row


def _after_ms(blocks: BlockCosts, pace: float) -> float:
    """Gradient norm and optimizer step of the slowest stage, at the pace of the run to come, in ms."""
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
        values["predicted_peak_activation_mib"] = _peak_activation_bytes(problem, schedule) / MIB
        if certificate is not None and certificate.makespan_ns:
            busy = sum(
                problem.costs[stage][b.chunk].duration_ns(b.kind, b.piece, b.pieces)
                for stage, order in enumerate(schedule.orders)
                for b in order
            )
            values["predicted_bubble_ratio"] = 1 - busy / (problem.stages * certificate.makespan_ns)
    return values


def _peak_activation_bytes(problem: Problem, schedule: Schedule) -> int:
    """Largest activation memory of any stage; the order alone decides it, the times play no part."""
    peaks = [0]
    for stage, order in enumerate(schedule.orders):
        steps = memory_steps(problem, tuple(TimedBlock(block, 0, 0) for block in order), stage)
        peaks.append(max((held for _, held in steps), default=0))
    return max(peaks)


def _run_values(run: RunRecord) -> dict[str, Any]:
    measured = run.measured
    iteration = median(i.iteration_ns / 1e6 for i in measured)
    makespan = median(i.makespan_ns / 1e6 for i in measured)
    raw = median(i.raw_makespan_ns / 1e6 for i in measured)
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
    if iteration is not None and makespan is not None and raw is not None:
        values |= {
            "measured_makespan_ms": makespan.value,
            "measured_iteration_ms": iteration.value,
            "measured_iteration_low_ms": iteration.low,
            "measured_iteration_high_ms": iteration.high,
            "measured_iteration_minimum_ms": min(i.iteration_ns for i in measured) / 1e6,
            "makespan_error_percent": _percent(makespan.value, values["predicted_makespan_ms"]),
            "error_percent": _percent(iteration.value, values["predicted_iteration_ms"]),
            "late_blocks": sum(i.late_blocks for i in measured),
            "late_messages": sum(i.late_messages for i in measured),
            "largest_lateness_ms": max(i.largest_lateness_ns for i in measured) / 1e6,
            "raw_makespan_ms": raw.value,
        }
    return values


def _iteration_rows(artifacts: PointArtifacts) -> Iterator[dict[str, Any]]:
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


def _compare(rows: list[dict[str, Any]]) -> None:
    """Puts each point beside the best static schedule of its setting and delay: the fastest measured where the point
    was measured, else the one with the shortest predicted makespan."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["delay"]), []).append(row)
    for group in groups.values():
        statics = [row for row in group if row["schedule"].partition(" ")[0] in STATIC_SCHEDULES]
        for row in group:
            by = "measured_iteration_ms" if row.get("measured_iteration_ms") else "predicted_makespan_ms"
            rivals = [s for s in statics if s.get(by) is not None]
            if not rivals or row.get(by) is None:
                continue
            best = min(rivals, key=lambda s: s[by])
            row["best_static"] = best["schedule"]
            for column, names in (
                ("predicted_vs_best_static_percent", ("predicted_iteration_ms", "predicted_makespan_ms")),
                ("measured_vs_best_static_percent", ("measured_iteration_ms",)),
            ):
                common = [n for n in names if row.get(n) is not None and best.get(n) is not None]
                if common:
                    row[column] = _percent(row[common[0]], best[common[0]])


def _percent(value: float, reference: float) -> float | None:
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
