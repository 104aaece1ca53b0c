"""Tidy results: a row per point, and per (point, iteration, rank or the whole): columns as `crosspipe.report.columns`.

Every point of the campaign has its row, also where it failed, was blocked or has not run yet; the row says why. Nothing
is averaged over points, and a schedule is only compared with others of the same setting and delay.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from crosspipe.errors import ArtifactError
from crosspipe.problem import Finding
from crosspipe.report.artifacts import ArtifactReader, PointArtifacts, load_campaign
from crosspipe.report.columns import ITERATION_COLUMNS, POINT_COLUMNS, Column
from crosspipe.report.findings import point_findings
from crosspipe.report.ranks import rank_frame
from crosspipe.report.rows import groups, iteration_rows, percent_of, point_row, varying_labels
from crosspipe.store.campaign_file import CampaignFile
from crosspipe.store.store import Store

# fixed by their authors before the delay is known; every other schedule here is searched for its Problem
STATIC_SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zbh1", "zbh2", "zbv", "v_half", "v_min")

_TYPES = {"text": pl.String, "integer": pl.Int64, "number": pl.Float64, "truth": pl.Boolean}


@dataclass(frozen=True)
class Results:
    """A campaign as tables: `points` and `iterations` (polars, columns as in the data dictionary), what was read to
    make them (`artifacts` by point, in the campaign's order) and every reason to distrust them (`findings`).

    `iterations` is made when first asked for: its rows of single ranks come from the timelines, which are large.
    """

    campaign: CampaignFile
    campaign_dir: Path
    store_root: Path
    artifacts: dict[str, PointArtifacts]
    points: pl.DataFrame
    findings: tuple[Finding, ...]

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """A row per iteration as a whole, and per measured iteration and rank."""
        frames = [_frame([row for a in self.artifacts.values() for row in iteration_rows(a)], ITERATION_COLUMNS)]
        schedules = self.points.select("point", "schedule").iter_rows()
        frames += [f for name, words in schedules if (f := rank_frame(self.artifacts[name], words)) is not None]
        whole = pl.concat(frames, how="diagonal").select(frames[0].columns)
        places = pl.DataFrame({"point": list(self.artifacts)}).with_row_index("place")
        ordered = whole.join(places, on="point", how="left", maintain_order="left")
        return ordered.sort("place", "iteration", "rank", nulls_last=False).drop("place")


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
    varying = varying_labels(campaign.points)
    rows = [point_row(a, varying) for a in artifacts.values()]
    contradictions = _share_bounds(rows, artifacts)
    _compare(rows)
    own = (f for a, row in zip(artifacts.values(), rows, strict=True) for f in point_findings(a, row))
    return Results(
        campaign=campaign,
        campaign_dir=campaign_dir,
        store_root=store.root,
        artifacts=artifacts,
        points=_frame(rows, POINT_COLUMNS),
        findings=tuple(dict.fromkeys([*contradictions, *own])),
    )


def dictionary() -> pl.DataFrame:
    """The data dictionary as a table: which file, column, unit, meaning."""
    files = {"results": POINT_COLUMNS, "iterations": ITERATION_COLUMNS}
    rows = [(file, c.name, c.kind, c.unit, c.meaning) for file, columns in files.items() for c in columns]
    return pl.DataFrame(rows, schema=["table", "column", "kind", "unit", "meaning"], orient="row")


def result_files(results: Results) -> dict[str, bytes]:
    """By file name: results and iterations as Parquet and CSV, and the data dictionary as CSV."""
    files: dict[str, bytes] = {}
    for name, frame in (("results", results.points), ("iterations", results.iterations)):
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        files |= {f"{name}.parquet": buffer.getvalue(), f"{name}.csv": frame.write_csv().encode()}
    return files | {"dictionary.csv": dictionary().write_csv().encode()}


def _frame(rows: Sequence[dict[str, Any]], columns: Iterable[Column]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={c.name: _TYPES[c.kind] for c in columns}, orient="row")


def _share_bounds(rows: list[dict[str, Any]], artifacts: dict[str, PointArtifacts]) -> list[Finding]:
    """Judges every schedule by the best bound the campaign proved for its Problem, since that holds for all of them.

    A bound above another schedule's makespan is wrong: it is reported and shared with none.
    """
    problems: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        problem = artifacts[row["point"]].problem
        if problem is not None and row.get("lower_bound_ms") is not None:
            problems.setdefault(problem.digest(), []).append(row)
    wrong = []
    for own in problems.values():
        best, shortest = max(own, key=lambda r: r["lower_bound_ms"]), min(own, key=lambda r: r["predicted_makespan_ms"])
        bound = {name: best[name] for name in ("lower_bound_ms", "proven_by")}
        if best["lower_bound_ms"] > shortest["predicted_makespan_ms"]:
            detail = (
                f"{best['point']}: no schedule should take less than {best['lower_bound_ms']:.3f} ms "
                f"({best['proven_by']}), but {shortest['point']} takes {shortest['predicted_makespan_ms']:.3f} ms"
            )
            wrong.append(Finding(name="bound_contradicted", detail=detail))
            continue
        for row in own:
            row |= bound
            row["gap_percent"] = percent_of(row["predicted_makespan_ms"], row["lower_bound_ms"])
    return wrong


def _compare(rows: list[dict[str, Any]]) -> None:
    """Puts each point beside the best static schedule of its setting and delay: the fastest measured where the point
    was measured, else the one with the shortest predicted makespan. What failed or is blocked is compared with nothing
    and is nobody's rival: its prediction says what it might have been, not what it is."""
    for group in groups(rows):
        alive = [row for row in group if row["status"] not in ("failed", "blocked", "infeasible")]
        statics = [row for row in alive if row["schedule"].partition(" ")[0] in STATIC_SCHEDULES]
        for row in alive:
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
                    row[column] = percent_of(row[common[0]], best[common[0]])
            ends = [(r.get("measured_iteration_low_ms"), r.get("measured_iteration_high_ms")) for r in (row, best)]
            if row is not best and not any(None in pair for pair in ends):
                row["differs_from_best_static"] = ends[0][0] > ends[1][1] or ends[0][1] < ends[1][0]
