"""Figures from rows: what is drawn is what the rows say, whatever their number."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from crosspipe.problem import Link, LinkTable
from crosspipe.report.figures import delay_figure, styles
from crosspipe.report.link_figures import ecdf, heat_map
from crosspipe.report.tradeoff import front, tradeoff_pictures


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


def test_no_two_schedules_look_alike() -> None:
    assert len(set(styles([f"s{i}" for i in range(42)]).values())) == 42


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
