"""The summary table as a reader sees it: the hand-worked numbers, in order, escaped."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from crosspipe.report.export import latex, markdown
from crosspipe.report.results import load_results
from crosspipe.report.tables import SummaryTable, summary_table
from crosspipe.report.wording import duration, gap, interval, number, percent, size


@pytest.fixture(scope="module")
def table(shared_campaign: Path) -> SummaryTable:
    return summary_table(load_results(shared_campaign).points)


def test_rows_go_by_delay_then_schedule(table: SummaryTable) -> None:
    assert [row.cells[:2] for row in table.rows] == [
        ("1f1b", "(0, 0)"), ("zbh1", "(0, 0)"), ("1f1b", "(1, 0)"), ("zbh1", "(1, 0)"), ("gpipe", "(1, 0)"),
        ("cross_ud", "(1, 0)"), ("zbh2", "(1, 0)"),
    ]  # fmt: skip


def test_cells_hold_the_hand_worked_numbers(table: SummaryTable) -> None:
    cells = dict(zip(table.head, table.rows[2].cells, strict=True))
    assert cells == {
        "schedule": "1f1b", "delay": "(1, 0)", "predicted": "113.0", "measured [95 %]": "113.7 [113.1, 114.3]",
        "error": "+0.62 %", "vs best static": "+21.34 %", "gap": "22.22 %", "peak MiB": "2.000",
        "note": "",
    }  # fmt: skip
    assert "optimal" in table.rows[3].cells
    assert table.rows[3].cells[5] == "best static"


def test_the_title_says_what_the_numbers_are(table: SummaryTable) -> None:
    assert table.title == "Iteration time in ms; delay = (T_lat, T_bw)/T_F; a stage may hold 2.000 MiB"


def test_the_fastest_of_each_delay_is_marked(table: SummaryTable) -> None:
    assert [row.cells[:2] for row in table.rows if row.fastest] == [("zbh1", "(0, 0)"), ("zbh1", "(1, 0)")]


def test_unfinished_points_say_why(table: SummaryTable) -> None:
    assert table.rows[4].cells[-1] == "the schedule failed: stage 0 needs 3 MiB, its limit is 2 MiB"


def test_terminal_shows_every_row(table: SummaryTable) -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    assert "113.7 [113.1, 114.3]" in out.getvalue()
    assert out.getvalue().count("(1, 0)") == 5 + 3  # a row each, and a note for those that did not finish


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_cuts_nothing_short(table: SummaryTable, width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    assert [line.split()[0] for line in lines if "(1, 0) " in line] == ["1f1b", "zbh1", "gpipe", "cross_ud", "zbh2"]
    assert ("[113.1, 114.3]" in out.getvalue()) == (width == 100)


def test_markdown_is_a_table(table: SummaryTable) -> None:
    lines = table.to_markdown().splitlines()
    assert lines[2].startswith("| schedule | delay | predicted |")
    assert {line.count("|") for line in lines[2:]} == {len(table.head) + 1}
    assert "| **zbh1** |" in table.to_markdown()


def test_numbers_read_well() -> None:
    assert [number(x) for x in (0.0, 1.1e-14, 0.0004, -0.00123456)] == ["0", "0", "0.000400", "-0.00123"]
    assert [number(x) for x in (0.1234, 12.345, 123.45, 12345.6, None)] == ["0.123", "12.35", "123.5", "12346", "–"]
    assert percent(-3.14159) == "−3.14 %"
    assert (gap(0.0), gap(1e-5), gap(2.0), gap(None)) == ("optimal", "< 0.01 %", "2.00 %", "–")
    assert interval(1.0, None, None) == "1.000"
    assert (size(512), size(1536), size(3 * 2**30)) == ("512 B", "1.500 KiB", "3.000 GiB")
    assert (duration(950), duration(1.5e6), duration(2e9)) == ("950.0 ns", "1.500 ms", "2.000 s")


def test_column_names_keep_the_symbols_of_the_paper() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "makespan in T_F": [1.5],
            "T_lat/T_F, T_bw/T_F": ["1, 2"],
            "best_static": ["a"],
            "Gbit/s, n_DP=16": [9.0],
            "gap_percent": [0.5],
        }
    )
    heads = markdown(frame, "caption").splitlines()[2]
    assert heads == "| makespan in T_F | T_lat/T_F, T_bw/T_F | best static | Gbit/s, n_DP=16 | gap % |"
    assert r"makespan in T\_F" in latex(frame, "caption")
