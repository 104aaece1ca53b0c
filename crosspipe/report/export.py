"""What the scripts in `analysis/` share: options, what a campaign must have, curves, tables and figures for a paper.

A table is a polars frame whose column names carry the units; it becomes CSV with all digits, and Markdown and LaTeX
with those a reader needs. A figure becomes PDF, SVG and PNG.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from crosspipe.errors import CrosspipeError
from crosspipe.report.figures import paper_style, styles
from crosspipe.report.wording import MISSING, number
from crosspipe.store.files import write_bytes

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from crosspipe.report.results import Results

_DELAYS = (("latency_ratio", "T_lat/T_F", "bandwidth_ratio"), ("bandwidth_ratio", "T_bw/T_F", "latency_ratio"))
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$"}


class Options(argparse.Namespace):
    """What every script is told: the campaign, where its artifacts are now, where to write."""

    campaign: Path
    store: Path | None
    out: Path


def options(doc: str | None) -> Options:
    """The command line of an analysis script, its docstring as help. The default output is CAMPAIGN/analysis."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", type=Path, metavar="CAMPAIGN_DIR", help="campaign directory")
    parser.add_argument("-o", "--out", type=Path, help="folder to write into; default CAMPAIGN_DIR/analysis")
    parser.add_argument("--store", type=Path, help="where the artifacts lie now; default: as the campaign recorded")
    found = parser.parse_args(namespace=Options())
    found.out = found.out or found.campaign / "analysis"
    return found


def run(main: Callable[[], None]) -> None:
    """Calls a script's `main`; a campaign that cannot be read ends it in the one line that says why."""
    try:
        main()
    except CrosspipeError as error:
        raise SystemExit(str(error)) from error


def require(results: Results, draws: str, wanted: Mapping[str, Collection[Any] | None]) -> None:
    """Ends the script in one line where the campaign is of another kind than it draws, which `draws` says.

    `wanted` names keys of the configuration as they are overridden (`pipeline.sites`) and what each may be in a point;
    None: anything that is given.
    """
    for key, allowed in wanted.items():
        found = [_at(artifacts.point.config, key) for artifacts in results.artifacts.values()]
        other = [v for v in found if v is None or (allowed is not None and v not in allowed)]
        if other:
            values = "not given" if other[0] is None else " and ".join(dict.fromkeys(map(str, other)))
            refuse(results, draws, f"{key} is {values}")


def one_each(results: Results, draws: str, points: pl.DataFrame, columns: Sequence[str]) -> None:
    """Ends the script in one line where several of `points` agree in all `columns`: nothing there tells them apart."""
    import polars as pl

    several = points.group_by(columns, maintain_order=True).len().filter(pl.col("len") > 1)
    if several.height:
        *values, count = several.row(0)
        refuse(results, draws, f"{count} points have {', '.join(map(_cell, values))}")


def refuse(results: Results, draws: str, found: str) -> NoReturn:
    """Ends the script in one line: what was found in this campaign, and what the script draws instead."""
    raise SystemExit(f"{results.campaign_dir}: {found} in this campaign ({results.campaign.name}); {draws}")


def unfinished(*campaigns: Results) -> list[str]:
    """A note for below a table where some points have no result yet; that one does not fit the memory is a result."""
    import polars as pl

    points = pl.concat([results.points for results in campaigns])
    finished = points.filter(pl.col("status").is_in(("done", "cached", "infeasible"))).height
    did = "have run" if points["run_key"].is_not_null().any() else "are solved"
    return [] if finished == points.height else [f"{finished} of {points.height} points {did}; the rest is missing."]


def write_table(frame: pl.DataFrame, stem: Path, caption: str, notes: Sequence[str] = ()) -> None:
    """`frame` as STEM.csv, STEM.md and STEM.tex, with the caption above and the notes below; prints the Markdown."""
    text = markdown(frame, caption, notes)
    write_bytes(_file(stem, "csv"), frame.write_csv().encode())
    write_bytes(_file(stem, "md"), text.encode())
    write_bytes(_file(stem, "tex"), latex(frame, caption, notes).encode())
    print(text)


def write_figure(figure: Figure, stem: Path) -> None:
    """`figure` as STEM.pdf, STEM.svg and STEM.png, without a date, so that equal data give equal files."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "crosspipe", "pdf.fonttype": 42}):
        figure.savefig(_file(stem, "pdf"), metadata={"CreationDate": None})
        figure.savefig(_file(stem, "svg"), metadata={"Date": None})
        figure.savefig(_file(stem, "png"), dpi=200)
    print(_file(stem, "pdf"))


def along_delays(
    points: pl.DataFrame, value: pl.Expr, label: str, *, measured: pl.Expr | None = None, rows: str | None = None
) -> Figure:
    """`value` of every schedule along latency alone and along bandwidth alone, side by side; its axis says `label`.

    `points` has columns schedule, latency_ratio and bandwidth_ratio, beside what `value` needs. With `measured` the
    marks are that, and the lines alone are `value`. There is a row of axes for each value of the column `rows`.
    """
    import matplotlib.pyplot as plt
    import polars as pl
    from matplotlib.lines import Line2D

    looks = styles(points["schedule"].to_list())
    kinds = [None] if rows is None else list(dict.fromkeys(points[rows]))
    with paper_style():
        size = (3.4, 0.9 + 1.7 * len(kinds))
        figure, grid = plt.subplots(len(kinds), 2, figsize=size, sharey="row", squeeze=False, layout="constrained")
        for kind, axes in zip(kinds, grid, strict=True):
            shown = points if rows is None else points.filter(pl.col(rows) == kind)
            for axis, (column, words, other) in zip(axes, _DELAYS, strict=True):
                for name, look in looks.items():
                    own = shown.filter(pl.col("schedule") == name, pl.col(other) == 0).sort(column)
                    axis.plot(own[column], own.select(value).to_series(), color=look.colour, linestyle=look.dashes)
                    marks = own.select(value if measured is None else measured).to_series()
                    axis.plot(own[column], marks, look.marker, color=look.colour, mfc="none")
                if axis in grid[-1]:
                    axis.set_xlabel(words)
            axes[0].set_ylabel(label)
            if kind is not None:
                axes[0].set_title(kind)
        handles = [
            Line2D([], [], color=look.colour, marker=look.marker, mfc="none", linestyle=look.dashes, label=name)
            for name, look in looks.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def needed(frame: pl.DataFrame, what: str) -> dict[str, Any]:
    """The first row of `frame`; ends the script in one line that names `what` where there is none."""
    if frame.is_empty():
        raise SystemExit(f"{what}: not in this campaign, or not finished; run the whole experiment, or wait for it")
    return frame.row(0, named=True)


def markdown(frame: pl.DataFrame, caption: str, notes: Sequence[str] = ()) -> str:
    """`frame` as a Markdown table."""
    numeric = [kind.is_numeric() for kind in frame.dtypes]
    lines = [[_words(name) for name in frame.columns], ["--:" if right else ":--" for right in numeric]]
    lines += [[_cell(value).replace("|", "\\|") for value in row] for row in frame.iter_rows()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([f"**{caption}**", table, *notes]) + "\n"


def latex(frame: pl.DataFrame, caption: str, notes: Sequence[str] = ()) -> str:
    """`frame` as a LaTeX table (booktabs)."""
    columns = "".join("r" if kind.is_numeric() else "l" for kind in frame.dtypes)
    rows = [[_words(name) for name in frame.columns], *([_cell(v) for v in row] for row in frame.iter_rows())]
    head, *body = [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
    below = [rf"\par\footnotesize {_escaped(note)}" for note in notes]
    return "\n".join(
        [
            r"\begin{table}", rf"\caption{{{_escaped(caption)}}}", rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", *below, r"\end{table}", "",
        ]
    )  # fmt: skip


def _file(stem: Path, ending: str) -> Path:
    """STEM.ENDING, in a folder that is there; a stem may have dots of its own, as in `fig15_zbv_1.5_0`."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    return stem.with_name(f"{stem.name}.{ending}")


def _at(config: Mapping[str, Any], key: str) -> Any:
    """What a configuration has at a dotted key; None where nothing stands there."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _words(column: str) -> str:
    """A column's name for readers: `gap_percent` is "gap %", `latency_ms` is "latency ms"; T_F and its like stay."""
    parts = re.split(r"(?<![A-Za-z])((?:T_(?:F|lat|bw)|n_DP))(?![A-Za-z])", column)
    parts[::2] = [part.replace("_percent", " %").replace("_", " ") for part in parts[::2]]
    return "".join(parts)


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    return number(value) if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text).replace("–", "--").replace("−", "$-$")
