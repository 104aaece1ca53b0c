"""What is to be seen in the scripts' figures: that nothing is cut off, and that labels say what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import polars as pl
import pytest
from paper_scripts import script

from crosspipe.report.export import write_figure


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_fig14_s_labels_are_no_longer_than_their_axes() -> None:
    table = pl.DataFrame(
        {
            "schedule": ["cross_ud_sub"] * 3 + ["cross_ud"] * 3, "stages": [4, 8, 16] * 2,
            "microbatches": [8, 16, 32] * 2, "gap_percent": [1.0, 3.0, 9.0] * 2, "solver_wall_s": [1.0, 10.0, 60.0] * 2,
        }
    )  # fmt: skip
    figure = script("fig14").draw(table)
    figure.canvas.draw()
    for axes in figure.axes:
        assert axes.yaxis.label.get_window_extent().height <= axes.get_window_extent().height


def test_fig11_leaves_room_above_the_highest_mark() -> None:
    points = pl.DataFrame(
        {
            "words": ["M8"] * 4, "schedule": ["zbh1"] * 4, "latency_ratio": [0.0, 1.0, 0.0, 0.0],
            "bandwidth_ratio": [0.0, 0.0, 1.0, 2.0], "predicted_makespan_ms": [990.0, 1000.0, 995.0, 999.0],
            "measured_makespan_ms": [None] * 4,
        },
        schema_overrides={"measured_makespan_ms": pl.Float64},
    )  # fmt: skip
    figure = script("fig11").draw(points)
    figure.canvas.draw()
    for axes in figure.axes:
        low, high = axes.get_ylim()
        points_of_axis = axes.get_window_extent().height * 72 / figure.dpi
        assert low == 0
        assert (high - 1.0) / high * points_of_axis > 2  # half a mark of 4 points


def test_fig12_prints_ratios_alike_and_speaks_of_its_own_links_only() -> None:
    fig12 = script("fig12")
    own = pl.DataFrame({"link": ["(1, 0.25)", "(1, 2)"]})
    assert fig12.comparable(own).endswith(" Of these links the paper draws far and wide (1, 0.25).")
    assert "draws far" not in fig12.comparable(pl.DataFrame({"link": ["(0.125, 0.125)"]}))


def test_fig15_tells_pictures_and_rows_of_several_delays_apart(
    tmp_path: Path, solved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ("pipeline.stages=2", "pipeline.microbatches=2", "pipeline.memory_microbatches=2")
    campaign = solved("fig15", "schedule=1f1b", *shape, "network.delay=[1,0],[2.5,0]")
    fig15, drawn = script("fig15"), []
    monkeypatch.setattr(fig15, "write_figure", lambda figure, stem: drawn.append(stem.name))
    monkeypatch.setattr("sys.argv", ["fig15.py", str(campaign), "-o", str(tmp_path / "out")])
    fig15.main()
    assert drawn == ["fig15_1f1b_1_0", "fig15_1f1b_2.5_0"]
    rows = pl.read_csv(tmp_path / "out" / "fig15.csv").iter_rows(named=True)
    # 90 ms without delay, F0 there and B1 back are the crossings, T_F = 10 ms
    assert {row["delay"]: row["makespan in T_F"] for row in rows} == {"(1, 0)": 11, "(2.5, 0)": 14}


def test_a_figure_s_name_keeps_its_dots(tmp_path: Path) -> None:
    write_figure(plt.figure(figsize=(1, 1)), tmp_path / "made" / "fig15_zbv_1.5_0")
    assert sorted(path.suffix for path in (tmp_path / "made").glob("fig15_zbv_1.5_0.*")) == [".pdf", ".png", ".svg"]
