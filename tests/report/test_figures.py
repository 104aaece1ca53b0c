"""Figures from rows: what is drawn is what the rows say, whatever their number."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from crosspipe.problem import Link, LinkTable
from crosspipe.report.delay_figures import delay_figure
from crosspipe.report.figures import COLOURS, styles
from crosspipe.report.link_figures import ecdf, heat_map
from crosspipe.report.tradeoff import front, tradeoff_pictures
from crosspipe.solver import SCHEDULES


def rows(schedules: int) -> list[dict[str, object]]:
    return [
        {
            "schedule": f"s{i}", "delay": f"({x}, 0)", "latency_ratio": float(x), "bandwidth_ratio": 0.0,
            "traversal": "ud", "predicted_iteration_ms": None, "predicted_makespan_ms": 100.0 + 10 * i * x,
            "measured_iteration_ms": None, "lower_bound_ms": 90.0, "origin": None,
        }
        for i in range(schedules)
        for x in (0, 1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("schedules", [1, 4, 7])
def test_a_line_a_schedule_and_one_for_the_bound(schedules: int) -> None:
    made = rows(schedules)
    figure = delay_figure(made, styles([str(row["schedule"]) for row in made]))
    assert figure is not None
    lines = figure.axes[0].lines
    assert len(lines) == schedules + 1
    assert list(lines[schedules - 1].get_ydata()) == [100.0, 100.0 + 10 * (schedules - 1), 100.0 + 20 * (schedules - 1)]
    assert list(lines[-1].get_ydata()) == [90.0] * 3
    assert figure.axes[0].get_ylabel() == "makespan (ms)"


def grid(latencies: int, bandwidths: int) -> list[dict[str, object]]:
    """Every pair of so many latencies and bandwidths: the makespan is 100 ms and both."""
    return [
        {
            "schedule": "s", "delay": f"latency_ms={x}, bandwidth_gbit_per_s={y}", "latency_ms": float(x),
            "serialisation_ms": 4.0**y, "traversal": "ud", "predicted_iteration_ms": None,
            "predicted_makespan_ms": 100 + x + 4.0**y, "measured_iteration_ms": None, "lower_bound_ms": 90.0,
            "origin": None,
        }
        for x in range(latencies)
        for y in range(bandwidths)
    ]  # fmt: skip


def test_many_delays_get_a_panel_per_latency() -> None:
    figure = delay_figure(grid(5, 4), styles(["s"]))
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.lines]
    assert [axes.get_title(loc="left") for axes in panels] == [f"latency {x} ms" for x in range(5)]
    assert list(panels[2].lines[0].get_xdata()) == [1, 4, 16, 64]
    assert list(panels[2].lines[0].get_ydata()) == [103, 106, 118, 166]
    figure.canvas.draw()
    labels = [label.get_text() for label in panels[4].get_xticklabels()]
    assert {"1", "10"} <= set(labels)  # a logarithmic axis with plain numbers
    assert not any("^" in label for label in labels)


def test_what_is_left_out_of_a_figure_is_counted() -> None:
    figure = delay_figure(grid(11, 3), styles(["s"]))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"latency {x} ms" for x in (0, 2, 4, 6, 8, 10)]
    assert figure.get_suptitle() == "simulated; 6 of 11 latencies"
    same = [row | {"latency_ms": 0.0, "serialisation_ms": 0.0} for row in grid(6, 5)]  # one site: no link matters
    alone = delay_figure(same, styles(["s"]))
    assert alone is not None
    assert [label.get_text() for label in alone.axes[0].get_xticklabels()] == ["0 + 0"]
    assert alone.axes[0].get_title(loc="left") == "simulated; one site: the same at 30 delays"
    named = [row | {"latency_ms": None} for row in grid(6, 5)]  # nothing says how they are ordered
    some = delay_figure(named, styles(["s"]))
    assert some is not None
    assert len(some.axes[0].get_xticks()) == 8
    assert some.axes[0].get_title(loc="left") == "simulated; 8 of 30 delays"


def test_few_pairs_stand_side_by_side() -> None:
    figure = delay_figure(grid(2, 4), styles(["s"]))
    assert figure is not None
    assert len(figure.axes) == 1
    assert len(figure.axes[0].get_xticks()) == 8


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("paper", ["#ffffff", "#14171b"])
def test_lines_stand_out_from_the_paper(colour: str, paper: str) -> None:
    """WCAG 2.2, 1.4.11: three to one; the papers are those of page.css."""

    def luminance(text: str) -> float:
        channels = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    bright, dark = sorted([luminance(colour), luminance(paper)], reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 3


def test_no_two_schedules_look_alike() -> None:
    assert len(set(styles([f"s{i}" for i in range(42)]).values())) == 42


def test_a_known_schedule_looks_the_same_in_every_figure() -> None:
    one, other = styles(["1f1b", "zbv", "cross_ud"]), styles(["mine", "cross_ud", "zbv"])
    assert (one["zbv"], one["cross_ud"]) == (other["zbv"], other["cross_ud"])
    known = styles([*SCHEDULES, "mine"])
    assert len(set(known.values())) == len(SCHEDULES) + 1  # what is not known has a look of its own
    assert known["1f1b"] == one["1f1b"]


def test_short_lines_side_by_side_carry_the_marker_of_the_legend() -> None:
    made = [row | {"schedule": name} for name in ("zbh1", "zbv") for row in grid(1, 1)]
    looks = styles(["zbh1", "zbv"])
    figure = delay_figure(made, looks)
    assert figure is not None
    assert [line.get_marker() for line in figure.axes[0].lines] == [looks["zbh1"].marker, looks["zbv"].marker]


def table() -> LinkTable:
    links = tuple(
        Link(source=a, target=b, transport=t, latency_ns=us * 1000, bandwidth_bytes_per_s=125_000_000 * us)
        for a, b, t, us in ((0, 1, "gloo", 10), (1, 0, "gloo", 20), (0, 1, "mpi", 1), (1, 0, "mpi", 2))
    )
    return LinkTable(links=links, site_of_rank=(0, 1), run_transport="gloo")


def test_the_heat_map_holds_latency_and_bandwidth_of_the_run_s_transport() -> None:
    figure = heat_map(table())
    assert figure is not None
    latency, bandwidth = (axes.images[0].get_array().filled(-1).tolist() for axes in figure.axes[:2])
    assert latency == [[-1, 10], [20, -1]]
    assert bandwidth == [[-1, 10], [20, -1]]  # 125 MB/s are 1 Gbit/s
    assert heat_map(LinkTable(links=(), site_of_rank=(0, 1))) is None


def test_the_distribution_is_of_the_smallest_messages_after_the_warm_up(tmp_path: Path) -> None:
    rows = [("gloo", 0, 1, size, i, i == 0, 2000 * (i + 1)) for size in (1, 64) for i in range(5)]
    names = ["transport", "source", "target", "size_bytes", "index", "warmup", "round_trip_ns"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "samples.parquet")
    figure = ecdf(tmp_path / "samples.parquet", table())
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_label() == "gloo, across sites (4)"
    assert list(line.get_xdata()) == [2, 3, 4, 5]  # half of 4 to 10 us
    assert list(line.get_ydata()) == [0.25, 0.5, 0.75, 1]
    assert ecdf(tmp_path / "nowhere.parquet", table()) is None


def test_the_front_is_what_nothing_beats_in_both() -> None:
    points = [(1, 9), (2, 9), (2, 5), (3, 6), (4, 4)]
    made = [{"predicted_peak_activation_mib": m, "predicted_makespan_ms": t} for m, t in points]
    assert front(made) == [(1, 9), (2, 5), (4, 4)]


def test_the_trade_off_needs_different_memory() -> None:
    def row(name: str, peak: float) -> dict[str, object]:
        return {
            "schedule": name, "delay": "(0, 0)", "microbatches": 8, "predicted_makespan_ms": 9.0,
            "predicted_peak_activation_mib": peak,
        }  # fmt: skip

    looks = styles(["a", "b"])
    assert [p.name for p in tradeoff_pictures([row("a", 1), row("b", 2)], looks)] == ["memory"]
    assert tradeoff_pictures([row("a", 1), row("b", 1)], looks) == []
