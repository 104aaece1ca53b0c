"""Iteration time against delay, and which pictures a report has.

One axis where one delay varies; a panel per latency where many pairs do (more than `MOST_SIDE_BY_SIDE`, which no axis
holds legibly); else the pairs side by side. What does not fit into a figure is in the table, and the figure says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crosspipe.report import prose
from crosspipe.report.figures import (
    INK,
    Picture,
    Style,
    agreement_figure,
    by_schedule,
    interval,
    name_schedules,
    origin_words,
    paper_style,
    plain_log,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]
MOST_SIDE_BY_SIDE = 8
MOST_PANELS = 6
LOG_FROM = 10  # times the smallest: values that spread so far stand on a logarithmic axis


class Sweep(NamedTuple):
    """How the delays of some rows vary: the column along the x axis with its label, and that of the panels, if any."""

    column: str
    label: str
    panels: str | None = None
    words: str = ""  # of a panel, {:g} its value


def pictures(rows: Rows, looks: dict[str, Style]) -> list[Picture]:
    """Time against delay for each setting, then measured against predicted.

    `rows` are of the tidy results in the order to show; a figure without data is left out.
    """
    drawn = []
    for index, setting in enumerate(dict.fromkeys(r["setting"] for r in rows)):
        own = [r for r in rows if r["setting"] == setting]
        title, caption = "Time against delay", _caption(own)
        drawn.append(
            (f"delay{index or ''}", ", ".join(filter(None, (title, setting))), caption, delay_figure(own, looks))
        )
    caption = prose.AGREEMENT_CAPTION.format(origin=origin_words(rows))
    drawn.append(("agreement", "Measured against predicted", caption, agreement_figure(rows, looks)))
    return [Picture(name, title, text, to_svg(figure)) for name, title, text, figure in drawn if figure is not None]


def _caption(rows: Rows) -> str:
    points = prose.DELAY_POINTS.format(origin=origin_words(rows)) if _measured_any(rows) else "Lines are simulated."
    return f"{points} {prose.DELAY_BOUND}"


def _measured_any(rows: Rows) -> bool:
    return any(r["measured_iteration_ms"] is not None for r in rows)


def delay_figure(rows: Rows, looks: dict[str, Style]) -> Figure | None:
    """Iteration time against delay of one setting, a look per schedule: predicted as lines, measured as points with the
    95 % interval of the median, and the proven lower bound. Makespans where no iteration time is known.

    `rows` are of the tidy results, in the order of growing delay. None where nothing is predicted.
    """
    from matplotlib.figure import Figure

    kind = "iteration" if any(r["predicted_iteration_ms"] is not None for r in rows) else "makespan"
    rows = [r for r in rows if r[f"predicted_{kind}_ms"] is not None]
    if not rows:
        return None
    delays, sweep = list(dict.fromkeys(r["delay"] for r in rows)), _sweep(rows)
    said = [f"lines: simulated; points: {origin_words(rows)}" if _measured_any(rows) else "simulated"]
    panels: dict[float | None, Rows] = {None: rows}
    if sweep is not None and sweep.panels is not None:
        panels = {value: [r for r in rows if r[sweep.panels] == value] for value in _shown(rows, sweep.panels, said)}
    elif len(delays) > 1 and all(r.get("latency_ms") == r.get("serialisation_ms") == 0 for r in rows):
        said.append(f"one site: the same at {len(delays)} delays")
        panels = {None: [r for r in rows if r["delay"] == delays[0]]}
        delays = delays[:1]
    elif sweep is None and len(delays) > MOST_SIDE_BY_SIDE:
        delays = _evenly(delays, MOST_SIDE_BY_SIDE)
        said.append(f"{len(delays)} of {len({r['delay'] for r in rows})} delays")
        panels = {None: [r for r in rows if r["delay"] in delays]}
    with paper_style():
        lines = -(-len(panels) // 2)
        figure = Figure(figsize=(3.4, 3.0 if len(panels) == 1 else 1.0 + 1.35 * lines), layout="constrained")
        shape = (1, 1) if len(panels) == 1 else (lines, 2)
        grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (value, own) in zip(grid, panels.items(), strict=False):
            if sweep is None:
                _side_by_side(axes, own, delays, looks, kind, marked=not _measured_any(rows))
            else:
                _along(axes, own, sweep, looks, kind, marked=not _measured_any(rows))
            if sweep is not None and value is not None:
                axes.set_title(sweep.words.format(value))
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[max(0, len(panels) - 2) : len(panels)]:  # the lowest of its column
            axes.tick_params(labelbottom=True)
            if sweep is not None:
                axes.set_xlabel(sweep.label)
        label = "iteration time (ms)" if kind == "iteration" else "makespan (ms)"
        if len(panels) == 1:
            grid[0].set_ylabel(label)
            grid[0].set_title("; ".join(said))
        else:
            figure.supylabel(label, fontsize=8)
            figure.suptitle("; ".join(said), fontsize=8, x=0.02, ha="left")
        name_schedules(grid[0], rows, looks, "-" if sweep is None else None)
    return figure


def _sweep(rows: Rows) -> Sweep | None:
    """How the delays vary along axes; None where few pairs stand side by side, or nothing says how they are ordered."""
    if rows[0]["delay"].startswith("("):
        names = ("latency_ratio", "bandwidth_ratio")
        labels, words = ("T_lat/T_F", "T_bw/T_F"), ("T_lat/T_F = {:g}", "T_bw/T_F = {:g}")
    else:
        names = ("latency_ms", "serialisation_ms")
        labels, words = ("latency (ms)", "on the wire (ms)"), ("latency {:.4g} ms", "{:.4g} ms on the wire")
    if any(r.get(name) is None for r in rows for name in names):
        return None
    latencies, bandwidths = ({r[name] for r in rows} for name in names)
    if len(latencies) > 1 and len(bandwidths) == 1:
        return Sweep(names[0], f"{labels[0]}  ({words[1].format(bandwidths.pop())})")
    if len(bandwidths) > 1 and len(latencies) == 1:
        return Sweep(names[1], f"{labels[1]}  ({words[0].format(latencies.pop())})")
    if len(bandwidths) > 1 and len({r["delay"] for r in rows}) > MOST_SIDE_BY_SIDE:
        return Sweep(names[1], labels[1], names[0], words[0])
    return None


def _shown(rows: Rows, column: str, said: list[str]) -> list[float]:
    """The values that get a panel; adds to `said` where those are not all."""
    values = sorted({r[column] for r in rows})
    shown = _evenly(values, MOST_PANELS)
    if len(shown) < len(values):
        said.append(f"{len(shown)} of {len(values)} latencies")
    return shown


def _evenly(values: list[Any], most: int) -> list[Any]:
    """At most so many of `values`, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _along(axes: Axes, rows: Rows, sweep: Sweep, looks: dict[str, Style], kind: str, *, marked: bool) -> None:
    """Lines over the sweep's column; `marked` puts a mark on each point, where none is there for the measured ones."""
    for name, own in by_schedule(rows).items():
        own = sorted(own, key=lambda r: r[sweep.column])
        look, xs = looks[name], [r[sweep.column] for r in own]
        times, mark = [r[f"predicted_{kind}_ms"] for r in own], look.marker if marked else ""
        axes.plot(xs, times, linestyle=look.dashes, color=look.colour, marker=mark, markerfacecolor="none")
        _measured(axes, xs, own, look)
    floors = sorted(_floors(rows, sweep.column, kind).items())
    axes.plot([x for x, _ in floors], [y for _, y in floors], ":", color=INK, linewidth=1)
    for axis, column in ((axes.xaxis, sweep.column), (axes.yaxis, f"predicted_{kind}_ms")):
        values = sorted({r[column] for r in rows})
        if values[0] > 0 and values[-1] >= LOG_FROM * values[0]:
            plain_log(axis)


def _side_by_side(
    axes: Axes, rows: Rows, delays: Sequence[str], looks: dict[str, Style], kind: str, *, marked: bool
) -> None:
    """A short line per schedule at each delay; `marked` as in `_along`."""
    schedules = by_schedule(rows)
    step = 0.8 / len(schedules)
    for index, (name, own) in enumerate(schedules.items()):
        look = looks[name]
        centres = [delays.index(r["delay"]) + (index - (len(schedules) - 1) / 2) * step for r in own]
        predicted = [r[f"predicted_{kind}_ms"] for r in own]
        axes.hlines(predicted, [x - 0.45 * step for x in centres], [x + 0.45 * step for x in centres], look.colour)
        if marked:
            axes.plot(centres, predicted, look.marker, color=look.colour, markerfacecolor="none")
        _measured(axes, centres, own, look)
    for delay, floor in _floors(rows, "delay", kind).items():
        centre = delays.index(delay)
        axes.hlines(floor, centre - 0.42, centre + 0.42, INK, linestyles=":", linewidth=1)
    names = [_name(delay, rows) for delay in delays]
    axes.set_xticks(range(len(delays)), names, **({} if len(delays) <= 4 else {"rotation": 30, "ha": "right"}))
    axes.set_xlim(-0.5, len(delays) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("(T_lat, T_bw) / T_F" if delays[0].startswith("(") else "latency + time on the wire (ms)")


def _name(delay: str, rows: Rows) -> str:
    """A delay as short as an axis wants it: the pair of ratios, or the pair in ms."""
    row = next(r for r in rows if r["delay"] == delay)
    if delay.startswith("(") or row.get("latency_ms") is None or row.get("serialisation_ms") is None:
        return delay
    return f"{row['latency_ms']:.3g} + {row['serialisation_ms']:.3g}"


def _measured(axes: Axes, centres: Sequence[float], rows: Rows, look: Style) -> None:
    both = [(x, r) for x, r in zip(centres, rows, strict=True) if r["measured_iteration_ms"] is not None]
    if both:
        xs, own = [x for x, _ in both], [r for _, r in both]
        ys = [r["measured_iteration_ms"] for r in own]
        axes.errorbar(xs, ys, yerr=interval(own), fmt=look.marker, color=look.colour, markerfacecolor="none", capsize=2)


def _floors(rows: Rows, column: str, kind: str) -> dict[Any, float]:
    """Per delay the time below which no schedule of these traversals can be: the proven bound of the makespan, and what
    follows it in an iteration."""
    floors: dict[Any, dict[str, float]] = {}
    for row in rows:
        if row["lower_bound_ms"] is not None:
            floor = row["lower_bound_ms"] + row[f"predicted_{kind}_ms"] - row["predicted_makespan_ms"]
            own = floors.setdefault(row[column], {})
            own[row["traversal"]] = max(floor, own.get(row["traversal"], 0.0))
    return {delay: min(own.values()) for delay, own in floors.items()}
