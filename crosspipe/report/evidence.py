"""The page's sections about what is proven of each schedule, and how far the runs kept to their plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosspipe.report import prose
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.markup import Content, folded, table, tag
from crosspipe.report.wording import MISSING, gap, joined, number, scientific
from crosspipe.schedule import Provenance


def certificates(artifacts: Mapping[str, PointArtifacts], rows: Sequence[dict[str, Any]]) -> Content:
    """What is proven about each schedule, by the best bound of its problem as in the results; the solver's explanation
    of each such bound; how the schedule was found."""
    where = _where(rows)
    lines = []
    explained: dict[tuple[str, str], list[str]] = {}  # (where, explanation) -> schedules
    assumptions: dict[str, None] = {}
    for row in rows:
        schedule = artifacts[row["point"]].schedule
        if schedule is None or schedule.certificate is None:
            continue
        certificate = schedule.certificate
        place = ", ".join(row[name] for name in where)
        if certificate.lower_bound_ns / 1e6 >= row["lower_bound_ms"]:  # another's weaker bound explains nothing
            explained.setdefault((place, certificate.explanation), []).append(row["schedule"])
            assumptions |= dict.fromkeys(certificate.assumptions)
        times = (number(certificate.makespan_ns / 1e6), number(row["lower_bound_ms"]))
        found = MISSING if schedule.provenance is None else _found_by(schedule.provenance)
        lines.append(
            [
                row["schedule"],
                *(row[n] for n in where),
                *times,
                gap(row["gap_percent"]),
                row["proven_by"],
                found,
            ]
        )
    if not lines:
        return tag("p", "No schedule has been solved yet.", class_="missing")
    head = ["schedule", *where, "makespan ms", "lower bound ms", "gap", "proven by", "found by"]
    shown = table(
        head, lines, caption="Certificates of the schedules (simulated)", text=(*where, "proven by", "found by")
    )
    words = [
        [tag("dt", f"{'Delay ' if where == ['delay'] else ''}{place}: {joined(schedules)}"), tag("dd", explanation)]
        for (place, explanation), schedules in explained.items()
    ]
    return [
        tag("p", prose.BOUNDS),
        folded(shown, len(lines), "certificates"),
        tag("h3", "What binds, in words"),
        folded(tag("dl", *words), len(words), "explanations"),
        [tag("h3", "Assumptions of the bounds"), tag("ul", *(tag("li", a) for a in assumptions))]
        if assumptions
        else None,
    ]


def _found_by(provenance: Provenance) -> str:
    parts = [provenance.method]
    parts += [f"{number(provenance.wall_s)} s"] if provenance.wall_s is not None else []
    parts += [f"{n} {value}" for n in ("workers", "seed") if (value := getattr(provenance, n)) is not None]
    return ", ".join(parts + [f"{name}={value}" for name, value in provenance.parameters.items()])


def execution(rows: Sequence[dict[str, Any]]) -> Content:
    """How far the runs kept to their plan: pacing, lateness, injected delay, gradients, loss."""
    runs = [r for r in rows if r["measured_iterations"]]
    if not runs:
        return tag("p", "No run has finished yet.", class_="missing")
    paces = sorted({r["pace"] for r in runs if r["pace"] is not None})
    words = [prose.PACED.format(paces=joined([f"{pace:g}" for pace in paces]))] if paces else []
    words += [prose.UNPACED] if any(r["pace"] is None for r in runs) else []
    where = _where(rows)
    head = ["schedule", *where, "iterations", "smallest iteration ms", "makespan ms", "wall clock ms"]
    head += ["late blocks", "late messages"]
    head += ["largest lateness ms", "delay error p50 ms", "p95 ms", "receive buffers MiB", "gradient error", "loss"]
    lines = [
        [
            r["schedule"], *(r[name] for name in where), r["measured_iterations"],
            number(r["measured_iteration_minimum_ms"]), number(r["measured_makespan_ms"]),
            number(r["raw_makespan_ms"]), r["late_blocks"], r["late_messages"], number(r["largest_lateness_ms"]),
            number(r["delay_error_p50_ms"]), number(r["delay_error_p95_ms"]), number(r["planned_receive_mib"]),
            scientific(r["gradient_relative_error"]), f"{number(r['loss_first'])} → {number(r['loss_last'])}",
        ]
        for r in runs
    ]  # fmt: skip
    caption = (
        "Medians and sums over the measured iterations, and the smallest, which the CrossPipe paper reports; loss: "
        "first iteration → last, warm-up included"
    )
    shown = table(head, lines, caption=caption, text=where)
    return [tag("p", " ".join(words)), folded(shown, len(lines), "runs")]


def _where(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The columns that place a schedule: the delay, and the setting where there are several."""
    return ["setting", "delay"] if len({r["setting"] for r in rows}) > 1 else ["delay"]
