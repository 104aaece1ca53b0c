"""The page's sections on where its numbers come from: files, artifacts, machines, versions, and what columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crosspipe.report import prose
from crosspipe.report.artifacts import STAGE_WORDS
from crosspipe.report.markup import Content, folded, table, tag
from crosspipe.report.results import Results, dictionary
from crosspipe.report.wording import MISSING

ORIGINS = (
    ("links, alpha, beta", "links/<key>/links.json", STAGE_WORDS["links"]),
    ("block times, memory, messages", "blocks/<key>/blocks.json", STAGE_WORDS["blocks"]),
    ("predicted makespan, bound, gap", "solve/<key>/schedule.json", "the certificate, for problem.json beside it"),
    ("iteration times, lateness, memory, loss", "run/<key>/run.json", STAGE_WORDS["run"]),
    ("measured Gantt pictures", "run/<key>/timelines.parquet", "one timeline per measured iteration"),
)


def provenance(results: Results, rows: Sequence[dict[str, Any]]) -> Content:
    """Which file and artifact each number was read from, and what machine and versions made it."""
    stages = list(dict.fromkeys(stage for a in results.artifacts.values() for stage in a.point.keys))
    lines = [
        [row["point"], row["status"], *(_key(results.artifacts[row["point"]].point.keys.get(s)) for s in stages)]
        for row in rows
    ]
    shown = table(["point", "status", *stages], lines, caption="Artifacts by point", text=("status", *stages))
    places = ("Store: ", tag("code", str(results.store_root)), "; campaign: ", tag("code", str(results.campaign_dir)))
    head = ["numbers", "file in the store", "what it is"]
    return [
        table(head, ORIGINS, caption="Where each number comes from", text=head),
        tag("p", *places),
        folded(shown, len(lines), "points"),
        _environments(results),
    ]


def _key(key: str | None) -> Content:
    return MISSING if key is None else tag("code", key[:12], title=key)


def _environments(results: Results) -> Content:
    lines = dict.fromkeys(("campaign", name, value) for name, value in results.campaign.environment.items())
    for a in results.artifacts.values():
        recorded = {
            "link profile": a.links.environment if a.links is not None else {},
            "block profile": a.blocks.environment if a.blocks is not None else {},
            "solve": a.schedule.provenance.versions
            if a.schedule is not None and a.schedule.provenance is not None
            else {},
            "run": a.run.environment if a.run is not None else {},
        }
        lines |= dict.fromkeys((maker, n, value) for maker, names in recorded.items() for n, value in names.items())
        for r in a.run.ranks if a.run is not None else ():
            lines["run", f"rank {r.rank}", f"host {r.host}, {r.device}, stage {r.stage}, site {r.site}"] = None
    if not lines:
        return tag("p", "The artifacts record no environment.", class_="missing")
    ordered = sorted(lines, key=lambda line: line[0])
    head = ["made by", "name", "value"]
    shown = table(head, ordered, caption="Machines and versions; a name listed twice: made by several", text=head)
    return folded(shown, len(ordered), "entries on machines and versions")


def columns() -> Content:
    """The data dictionary of the files beside the page."""
    lines = [[tag("code", c), file, unit, meaning] for file, c, _, unit, meaning in dictionary().iter_rows()]
    head = ["column", "file", "unit", "meaning"]
    shown = table(head, lines, caption="Data dictionary", text=head)
    return [tag("p", prose.FILES), tag("details", tag("summary", f"Data dictionary ({len(lines)} columns)"), shown)]
