"""The report's figures: iteration time against delay, and measured against predicted times (matplotlib, to SVG).

Drawn for one paper column (3.4 in, 8 pt), in the colour-blind safe palette of Okabe and Ito with a marker and a line
style per schedule, so that they also survive grey print. Every figure says what its numbers are: simulated, emulated,
shaped TCP or real link.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from crosspipe.report import prose
from crosspipe.report.wording import joined

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS, _DASHES = "osD^vPX", ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)))


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
    """A look for each schedule; colour, marker and line style differ, so that no two agree in all three below 84."""
    return {
        name: Style(COLOURS[i % 6], _MARKERS[i % 7], _DASHES[i % 4]) for i, name in enumerate(dict.fromkeys(schedules))
    }


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


def pictures(rows: Sequence[dict[str, Any]], looks: dict[str, Style]) -> list[Picture]:
    """All figures of a report: time against delay for each setting, then measured against predicted.

    `rows` are of the tidy results in the order to show; a figure without data is left out.
    """
    drawn = []
    for index, setting in enumerate(dict.fromkeys(r["setting"] for r in rows)):
        own = [r for r in rows if r["setting"] == setting]
        title, caption = "Time against delay", _delay_caption(own)
        drawn.append(
            (f"delay{index or ''}", ", ".join(filter(None, (title, setting))), caption, delay_figure(own, looks))
        )
    caption = prose.AGREEMENT_CAPTION.format(origin=origin_words(rows))
    drawn.append(("agreement", "Measured against predicted", caption, agreement_figure(rows, looks)))
    return [Picture(name, title, text, to_svg(figure)) for name, title, text, figure in drawn if figure is not None]


def _delay_caption(rows: Sequence[dict[str, Any]]) -> str:
    points = prose.DELAY_POINTS.format(origin=origin_words(rows)) if _measured_any(rows) else "Lines are simulated."
    return f"{points} {prose.DELAY_BOUND}"


def _measured_any(rows: Sequence[dict[str, Any]]) -> bool:
    return any(r["measured_iteration_ms"] is not None for r in rows)


def delay_figure(rows: Sequence[dict[str, Any]], looks: dict[str, Style]) -> Figure | None:
    """Iteration time against delay of one setting, a look per schedule: predicted as lines, measured as points with the
    95 % interval of the median, and the proven lower bound. Makespans where no iteration time is known.

    `rows` are of the tidy results, in the order of growing delay. Where only latency or only bandwidth varies the delay
    is the x axis; else the pairs stand side by side. None where nothing is predicted.
    """
    import matplotlib
    from matplotlib.figure import Figure

    kind = "iteration" if any(r["predicted_iteration_ms"] is not None for r in rows) else "makespan"
    rows = [r for r in rows if r[f"predicted_{kind}_ms"] is not None]
    if not rows:
        return None
    delays = list(dict.fromkeys(r["delay"] for r in rows))
    along = _single_axis(rows)
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(3.4, 3.0), layout="constrained")
        axes = figure.add_subplot()
        if along is None:
            _side_by_side(axes, rows, delays, looks, kind)
        else:
            _along(axes, rows, along, looks, kind)
        axes.set_ylabel("iteration time (ms)" if kind == "iteration" else "makespan (ms)")
        axes.set_title(f"lines: simulated; points: {origin_words(rows)}" if _measured_any(rows) else "simulated")
        _legend(axes, rows, looks, "-" if along is None else None)
    return figure


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
        for name, own in _by_schedule(rows).items():
            predicted = [r["predicted_iteration_ms"] for r in own]
            spans = _interval(own)
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
        _legend(upper, rows, looks, "none")
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as SVG text, without date or random identifiers, so that equal data give equal files."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _single_axis(rows: Sequence[dict[str, Any]]) -> tuple[str, str] | None:
    """The column that alone varies with the delay, and its label; None where it takes two."""
    ratios = [(r["latency_ratio"], r["bandwidth_ratio"]) for r in rows]
    if any(None in pair for pair in ratios):
        return None
    latencies, bandwidths = ({pair[i] for pair in ratios} for i in (0, 1))
    if len(latencies) > 1 and len(bandwidths) == 1:
        return "latency_ratio", f"T_lat/T_F  (T_bw/T_F = {bandwidths.pop():g})"
    if len(bandwidths) > 1 and len(latencies) == 1:
        return "bandwidth_ratio", f"T_bw/T_F  (T_lat/T_F = {latencies.pop():g})"
    return None


def _along(
    axes: Axes, rows: Sequence[dict[str, Any]], along: tuple[str, str], looks: dict[str, Style], kind: str
) -> None:
    column, label = along
    for name, own in _by_schedule(rows).items():
        own = sorted(own, key=lambda r: r[column])
        look = looks[name]
        axes.plot(
            [r[column] for r in own], [r[f"predicted_{kind}_ms"] for r in own], linestyle=look.dashes, color=look.colour
        )
        _measured(axes, [r[column] for r in own], own, look)
    floors = sorted(_floors(rows, column, kind).items())
    axes.plot([x for x, _ in floors], [y for _, y in floors], ":", color=INK, linewidth=1)
    axes.set_xlabel(label)


def _side_by_side(
    axes: Axes, rows: Sequence[dict[str, Any]], delays: Sequence[str], looks: dict[str, Style], kind: str
) -> None:
    schedules = _by_schedule(rows)
    step = 0.8 / len(schedules)
    for index, (name, own) in enumerate(schedules.items()):
        look = looks[name]
        centres = [delays.index(r["delay"]) + (index - (len(schedules) - 1) / 2) * step for r in own]
        predicted = [r[f"predicted_{kind}_ms"] for r in own]
        axes.hlines(predicted, [x - 0.45 * step for x in centres], [x + 0.45 * step for x in centres], look.colour)
        _measured(axes, centres, own, look)
    for delay, floor in _floors(rows, "delay", kind).items():
        centre = delays.index(delay)
        axes.hlines(floor, centre - 0.42, centre + 0.42, INK, linestyles=":", linewidth=1)
    axes.set_xticks(range(len(delays)), delays, rotation=0 if len(delays) <= 4 else 30)
    axes.set_xlim(-0.5, len(delays) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("(T_lat, T_bw) / T_F" if delays[0].startswith("(") else "delay across sites")


def _measured(axes: Axes, centres: Sequence[float], rows: Sequence[dict[str, Any]], look: Style) -> None:
    both = [(x, r) for x, r in zip(centres, rows, strict=True) if r["measured_iteration_ms"] is not None]
    if both:
        xs, own = [x for x, _ in both], [r for _, r in both]
        ys = [r["measured_iteration_ms"] for r in own]
        axes.errorbar(
            xs, ys, yerr=_interval(own), fmt=look.marker, color=look.colour, markerfacecolor="none", capsize=2
        )


def _interval(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Distances from the median to the ends of its interval; zero where there is none."""
    low, high = [], []
    for row in rows:
        middle, a, b = (row[f"measured_iteration_{end}ms"] for end in ("", "low_", "high_"))
        low.append(0.0 if a is None else middle - a)
        high.append(0.0 if b is None else b - middle)
    return low, high


def _floors(rows: Sequence[dict[str, Any]], column: str, kind: str) -> dict[Any, float]:
    """Per delay the time below which no schedule of these traversals can be: the proven bound of the makespan, and what
    follows it in an iteration."""
    floors: dict[Any, dict[str, float]] = {}
    for row in rows:
        if row["lower_bound_ms"] is not None:
            floor = row["lower_bound_ms"] + row[f"predicted_{kind}_ms"] - row["predicted_makespan_ms"]
            own = floors.setdefault(row[column], {})
            own[row["traversal"]] = max(floor, own.get(row["traversal"], 0.0))
    return {delay: min(own.values()) for delay, own in floors.items()}


def _by_schedule(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["schedule"], []).append(row)
    return found


def _legend(axes: Axes, rows: Sequence[dict[str, Any]], looks: dict[str, Style], dashes: str | None = None) -> None:
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
