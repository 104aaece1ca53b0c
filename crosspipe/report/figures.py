"""What the report's figures have in common (matplotlib, to SVG), and the one of measured against predicted times.

Drawn for one paper column (3.4 in, 8 pt), in colours that are told apart with any colour vision and stand out from
white and from dark paper, with a marker and a line style per schedule, so that they also survive grey print. Every
figure says what its numbers are: simulated, emulated, shaped TCP or real link.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from crosspipe.report.wording import joined

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, PAPER = "#1b1e23", "#ffffff"  # text and axes, background; a page in dark mode puts its own in their place
_RC = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#8a8f98",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "crosspipe",
} | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
# Okabe and Ito's, with a brown and a grey for the orange and the sky blue, too pale for a line on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8F6B00", "#6E7781")
_MARKERS, _DASHES = "osD^vPX", ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)))
# each has its own look, the same in every figure; those that are often drawn together come first, each in a colour
_SCHEDULES = (
    "1f1b", "zbh1", "zbv", "cross_ud_sub", "cross_ud", "cross_wave", "gpipe", "v_half", "v_min", "interleaved_1f1b",
    "zbh2", "cross_loop", "auto",
)  # fmt: skip


def paper_style() -> AbstractContextManager[None]:
    """matplotlib set as all figures here: for one paper column, legible at 8 pt."""
    import matplotlib

    return matplotlib.rc_context(_RC)


class Style(NamedTuple):
    """How a schedule looks in every figure of a report."""

    colour: str
    marker: str
    dashes: Any


def styles(schedules: Sequence[str]) -> dict[str, Style]:
    """A look for each schedule: a known one has its own wherever it is drawn, others have those that are left over."""
    names = list(dict.fromkeys(schedules))
    others = [name for name in names if name not in _SCHEDULES]
    place = {name: i for i, name in enumerate((*_SCHEDULES, *others))}
    return {name: _look(place[name]) for name in names}


def series(names: Sequence[str]) -> dict[str, Style]:
    """A look for each of what are no schedules, in their order: links, kinds of blocks, sizes of a batch."""
    return {name: _look(i) for i, name in enumerate(dict.fromkeys(names))}


def _look(place: int) -> Style:
    """Colour, marker and line style differ from one place to the next, and no two agree in all three below 84."""
    return Style(COLOURS[place % 6], _MARKERS[place % 7], _DASHES[place % 4])


def origin_words(rows: Sequence[dict[str, Any]]) -> str:
    """What the measured numbers of `rows` are, in words; "nothing measured" if there are none."""
    origins = sorted({r["origin"] for r in rows if r["measured_iteration_ms"] is not None})
    return joined(origins) if origins else "nothing measured"


class Picture(NamedTuple):
    """A finished figure: `name` for its file, title, caption and the SVG text."""

    name: str
    title: str
    caption: str
    svg: str


def agreement_figure(rows: Sequence[dict[str, Any]], looks: dict[str, Style]) -> Figure | None:
    """Measured against predicted iteration times with the line of perfect agreement, and below the error in percent.

    None where nothing was measured.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = [r for r in rows if r["measured_iteration_ms"] is not None]
    if not rows:
        return None
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(3.4, 3.8), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        spread = ("measured_iteration_low_ms", "measured_iteration_high_ms")
        shown = ("predicted_iteration_ms", "measured_iteration_ms", *spread)
        times = [r[k] for r in rows for k in shown if r[k] is not None]
        margin = 0.05 * (max(times) - min(times)) or 0.05 * max(times)
        ends = (min(times) - margin, max(times) + margin)
        upper.plot(ends, ends, color=INK, linewidth=0.8)
        lower.axhline(0, color=INK, linewidth=0.8)
        for name, own in by_schedule(rows).items():
            predicted = [r["predicted_iteration_ms"] for r in own]
            spans = interval(own)
            shares = [[100 * d / x for d, x in zip(span, predicted, strict=True)] for span in spans]
            bars = {"color": looks[name].colour, "fmt": looks[name].marker, "markerfacecolor": "none", "capsize": 2}
            upper.errorbar(predicted, [r["measured_iteration_ms"] for r in own], yerr=spans, **bars)
            lower.errorbar(predicted, [r["error_percent"] for r in own], yerr=shares, **bars)
        upper.set_xlim(ends)
        upper.set_ylim(ends)
        upper.set_ylabel("measured (ms)")
        lower.set_ylabel("error (%)")
        lowest, highest = lower.get_ylim()
        lower.set_ylim(min(lowest, -1.0), max(highest, 1.0))
        lower.set_xlabel("predicted iteration time (ms)")
        upper.set_title(f"predicted: simulated; measured: {origin_words(rows)}")
        name_schedules(upper, rows, looks, "none")
    return figure


def plain_log(axis: Axis, values: Iterable[float] | None = None) -> None:
    """Makes `axis` logarithmic with plain numbers: those of `values`, or else powers of ten (upwards, where there is
    room, also 2 and 5 times those)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.15g}"))
    axis.set_minor_locator(NullLocator())
    between = LogLocator(subs=(1,) if axis.axis_name == "x" else (1, 2, 5))
    axis.set_major_locator(between if values is None else FixedLocator(sorted(set(values))))


def to_svg(figure: Figure) -> str:
    """The figure as SVG text, without date or random identifiers, so that equal data give equal files."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def interval(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Distances from the median to the ends of its interval; zero where there is none."""
    low, high = [], []
    for row in rows:
        middle, a, b = (row[f"measured_iteration_{end}ms"] for end in ("", "low_", "high_"))
        low.append(0.0 if a is None else middle - a)
        high.append(0.0 if b is None else b - middle)
    return low, high


def by_schedule(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """`rows` by the schedule's name, in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["schedule"], []).append(row)
    return found


def name_schedules(
    axes: Axes, rows: Sequence[dict[str, Any]], looks: dict[str, Style], dashes: str | None = None
) -> None:
    """Names the schedules below the axes, with `dashes` for all of them or else each with its own."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            marker=look.marker,
            markerfacecolor="none",
            linestyle=dashes or look.dashes,
            label=name,
        )
        for name, look in looks.items()
        if any(r["schedule"] == name for r in rows)
    ]
    if dashes == "none":
        handles.append(Line2D([], [], color=INK, linewidth=0.8, label="measured = predicted"))
    elif any(r["lower_bound_ms"] is not None for r in rows):
        handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=1, label="proven lower bound"))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), handlelength=2.6)
