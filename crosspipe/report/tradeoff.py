"""The memory–time trade-off: what more activation memory buys, over all schedules and settings of one delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crosspipe.report import prose
from crosspipe.report.figures import INK, Picture, Style, paper_style, to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tradeoff_pictures(rows: Sequence[dict[str, Any]], looks: dict[str, Style]) -> list[Picture]:
    """The trade-off at the longest delay, per number of microbatches; none where all need the same memory.

    `rows` are of the tidy results in the order of growing delay.
    """
    known = [r for r in rows if r["predicted_makespan_ms"] is not None and r["predicted_peak_activation_mib"]]
    drawn = []
    for index, count in enumerate(dict.fromkeys(r["microbatches"] for r in known)):
        own = [r for r in known if r["microbatches"] == count]
        own = [r for r in own if r["delay"] == own[-1]["delay"]]
        peaks = [r["predicted_peak_activation_mib"] for r in own]
        if max(peaks) < 1.05 * min(peaks):
            continue
        title = f"Memory against time, delay {own[0]['delay']}, {count} microbatches"
        drawn.append(Picture(f"memory{index or ''}", title, prose.TRADEOFF_CAPTION, to_svg(tradeoff(own, looks))))
    return drawn


def front(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """(peak MiB, makespan ms) of those rows that no other beats in both, by growing memory."""
    found: list[tuple[float, float]] = []
    for memory, time in sorted((r["predicted_peak_activation_mib"], r["predicted_makespan_ms"]) for r in rows):
        if not found or time < found[-1][1]:
            found.append((memory, time))
    return found


def tradeoff(rows: Sequence[dict[str, Any]], looks: dict[str, Style]) -> Figure:
    """Makespan over peak activation memory, a mark a point, and the front as a step line."""
    from matplotlib.figure import Figure

    with paper_style():
        figure = Figure(figsize=(3.4, 2.8), layout="constrained")
        axes = figure.add_subplot()
        best = front(rows)
        axes.step([m for m, _ in best], [t for _, t in best], where="post", color=INK, linewidth=0.8, label="front")
        for name in dict.fromkeys(r["schedule"] for r in rows):
            own = [r for r in rows if r["schedule"] == name]
            axes.plot(
                [r["predicted_peak_activation_mib"] for r in own], [r["predicted_makespan_ms"] for r in own],
                marker=looks[name].marker, color=looks[name].colour, markerfacecolor="none", linestyle="none",
                label=name,
            )  # fmt: skip
        axes.set_xlabel("peak activations of the fullest stage (MiB)")
        axes.set_ylabel("makespan (ms, simulated)")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
