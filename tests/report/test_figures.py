"""Figures from rows: what is drawn is what the rows say, whatever their number."""

from __future__ import annotations

import pytest

from crosspipe.report.figures import delay_figure, styles


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
