"""Reasons to distrust a point: what the measuring stages already found, and what only shows when artifacts meet.

Each is a `Finding` with a name and one sentence; the report lists them, `--strict` turns them into a failure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from crosspipe.problem import Finding
from crosspipe.report.artifacts import PointArtifacts

ERROR_LIMIT_PERCENT = 5.0
GRADIENT_LIMIT = 1e-5


def point_findings(artifacts: PointArtifacts, row: dict[str, Any]) -> list[Finding]:
    """All findings of one point; `row` is its row of the tidy results (absent columns are not known)."""
    point = artifacts.point.name
    found = [Finding(name="artifact_unreadable", detail=text) for text in artifacts.unreadable]
    if artifacts.status in ("failed", "blocked") and not artifacts.unreadable:
        found.append(Finding(name=f"point_{artifacts.status}", detail=f"{point}: {artifacts.reason}"))
    found += [Finding(name="stale_input", detail=f"{point}: {text}") for text in artifacts.stale]
    if artifacts.links is not None:
        found += artifacts.links.findings
    if artifacts.blocks is not None:
        found += artifacts.blocks.findings
    if artifacts.run is not None:
        found += [msgspec.structs.replace(f, detail=f"{point}: {f.detail}") for f in artifacts.run.findings]
    return found + [Finding(name=name, detail=f"{point}: {text}") for name, text in _met(artifacts, row)]


def _met(artifacts: PointArtifacts, row: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    problem, schedule, run = artifacts.problem, artifacts.schedule, artifacts.run
    if run is None:
        return found
    if problem is not None and problem.digest() != run.problem_digest:
        found.append(("stale_run", "the run executed another problem than the store now holds; run it again"))
    if schedule is not None and schedule.certificate is not None:
        planned, predicted = schedule.certificate.makespan_ns, run.predicted_makespan_ns
        if planned != predicted:
            found.append(
                (
                    "prediction_differs",
                    f"the run predicts {predicted / 1e6:.3f} ms, the certificate says {planned / 1e6:.3f} ms",
                )
            )
    error = row.get("error_percent")
    if error is not None and abs(error) > ERROR_LIMIT_PERCENT:
        found.append(
            ("far_from_prediction", f"measured {error:+.1f} % off the prediction (limit {ERROR_LIMIT_PERCENT:g} %)")
        )
    gradient = run.gradient_relative_error
    if gradient is not None and not gradient <= GRADIENT_LIMIT:
        found.append(
            ("gradients_differ", f"gradients are {gradient:.1e} off those of one process (limit {GRADIENT_LIMIT:g})")
        )
    if run.iterations and not run.iterations[-1].loss < run.iterations[0].loss:
        first, last = run.iterations[0].loss, run.iterations[-1].loss
        found.append(("loss_did_not_fall", f"the loss went from {first:.4f} to {last:.4f}"))
    return found
