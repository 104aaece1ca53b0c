"""`build_report`: from a campaign directory to `report.html` with tables, figures and tidy results beside it.

It works on whatever has finished, and reads only artifacts: no solver, torch, MPI or scheduler is needed.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.problem import Finding
from crosspipe.report.delay_figures import pictures
from crosspipe.report.figures import styles
from crosspipe.report.history_figures import history_pictures, node_pictures
from crosspipe.report.html import page
from crosspipe.report.link_figures import link_pictures
from crosspipe.report.measurements import read_measurements
from crosspipe.report.results import load_results, result_files
from crosspipe.report.tables import SummaryTable, order, summary_table
from crosspipe.report.tradeoff import tradeoff_pictures


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

    Raises ArtifactError if there is no campaign, its store is not there, or the report cannot be written; what stood
    there before then still stands.
    """
    results = load_results(campaign_dir, store_root)
    target = Path(campaign_dir) / "report" if out is None else Path(out)
    path = target if target.suffix == ".html" else target / "report.html"
    table, rows = summary_table(results.points), order(results.points)
    looks = styles([row["schedule"] for row in rows])
    measurements = read_measurements(results)
    drawn = {
        "figures": [*pictures(rows, looks), *tradeoff_pictures(rows, looks)],
        "links": link_pictures(measurements.links),
        "blocks": node_pictures(measurements),
        "history": history_pictures(measurements),
    }
    files = result_files(results) | {"summary.md": table.to_markdown().encode()}
    files |= {f"figures/{picture.name}.svg": picture.svg.encode() for some in drawn.values() for picture in some}
    _write(path.parent, files | {path.name: page(results, rows, table, measurements, drawn).encode()})
    if strict and results.findings:
        first = results.findings[0]
        raise CrosspipeError(f"{path}: {len(results.findings)} findings, the first {first.name}: {first.detail}")
    return Report(path, results.findings, table)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """All `files` into `folder`, or none: they are written beside it first, and only then moved to their places."""
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            aside = Path(name)
            for file, data in files.items():
                (aside / file).parent.mkdir(exist_ok=True)
                (aside / file).write_bytes(data)
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (aside / file).replace(folder / file)
    except OSError as error:
        raise ArtifactError(
            f"{error.filename or folder}: the report cannot be written ({error.strerror}); "
            "make room there, or give another place with -o"
        ) from error
