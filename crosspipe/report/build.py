"""`build_report`: from a campaign directory to `report.html` with tables, figures and tidy results beside it.

It works on whatever has finished, and reads only artifacts: no solver, torch, MPI or scheduler is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crosspipe.errors import CrosspipeError
from crosspipe.problem import Finding
from crosspipe.report.figures import pictures, styles
from crosspipe.report.html import page
from crosspipe.report.results import load_results, write_results
from crosspipe.report.tables import SummaryTable, order, summary_table
from crosspipe.store.files import write_bytes


@dataclass(frozen=True)
class Report:
    """A written report: `path` of report.html, `findings`, and the summary `table` (rich prints it as it is)."""

    path: Path
    findings: tuple[Finding, ...]
    table: SummaryTable


def build_report(
    campaign_dir: str | Path,
    store_root: str | Path | None = None,
    out: str | Path | None = None,
    *,
    strict: bool = False,
) -> Report:
    """Writes the report of the campaign in `campaign_dir` and returns where it is.

    `store_root` defaults to the campaign's own store. `out` is a folder, or a file ending in .html (the rest goes
    beside it); default `<campaign_dir>/report`. Written are report.html, summary.md, results and iterations as Parquet
    and CSV, dictionary.csv and figures/*.svg. With `strict`, any finding raises CrosspipeError after all is written.

    Raises ArtifactError if there is no campaign, or its store is not there.
    """
    results = load_results(campaign_dir, store_root)
    target = Path(campaign_dir) / "report" if out is None else Path(out)
    path = target if target.suffix == ".html" else target / "report.html"
    (path.parent / "figures").mkdir(parents=True, exist_ok=True)
    table, rows = summary_table(results.points), order(results.points)
    drawn = pictures(rows, styles([row["schedule"] for row in rows]))
    write_results(results, path.parent)
    write_bytes(path.parent / "summary.md", table.to_markdown().encode())
    for picture in drawn:
        write_bytes(path.parent / "figures" / f"{picture.name}.svg", picture.svg.encode())
    write_bytes(path, page(results, rows, table, drawn).encode())
    if strict and results.findings:
        first = results.findings[0]
        raise CrosspipeError(f"{path}: {len(results.findings)} findings, the first {first.name}: {first.detail}")
    return Report(path, results.findings, table)
