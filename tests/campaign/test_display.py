"""What a person reads while a campaign goes on, and where it failed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crosspipe.campaign.display import Bars, Lines, listener, show_plan, show_summary
from crosspipe.campaign.driver import plan_campaign, plan_tasks, run_campaign


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bars), (False, Lines)])
def test_bars_in_a_terminal_lines_elsewhere(terminal: bool, kind: type) -> None:
    assert isinstance(listener(Console(file=io.StringIO(), force_terminal=terminal)), kind)


def test_lines_count_and_failures_say_where_to_look(points: Callable[..., Any], orders: Path, tmp_path: Path) -> None:
    (orders / "fail-run").write_text("zbh1_delay-0-0")
    out = io.StringIO()
    console = Console(file=out, width=200)
    with listener(console) as heard:
        summary = run_campaign(plan_campaign(points()), tmp_path / "campaign", heard, bodies="standin_bodies")
    lines = [re.sub(r"^\[ *[\d.]+ s\] ", "", line) for line in out.getvalue().splitlines()]
    assert lines[:4] == [
        "profile links: 1 wanted, 0 cached",
        "profile blocks: 1 wanted, 0 cached",
        "solve: 4 wanted, 0 cached",
        "run: 4 wanted, 0 cached",
    ]
    assert "profile links 1/1: for 4 points done" in lines
    assert "run 4/4: zbh1_delay-1-0.25 done" in lines
    assert "run 3/4: zbh1_delay-0-0 failed" in lines  # why is said at the end
    out.truncate(0)
    show_summary(summary, console)
    assert "run failed: zbh1_delay-0-0: rank 2 died" in out.getvalue()


def test_bars_fill_up(points: Callable[..., Any], orders: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=True, width=120)) as heard:
        run_campaign(plan_campaign(points()), tmp_path / "campaign", heard, bodies="standin_bodies")
    last = out.getvalue().rpartition("profile links")[2]
    assert "4/4" in last
    assert "run zbh1_delay-1-0.25" in last


@pytest.mark.parametrize(("executor", "hours"), [("slurm", [["1", "0.2"]]), ("local", [])])
def test_a_dry_run_counts_the_reports_job(
    points: Callable[..., Any], tmp_path: Path, executor: str, hours: list[list[str]]
) -> None:
    out = io.StringIO()
    plan = plan_campaign(points(cluster__executor=executor))
    show_plan(plan, plan_tasks(plan, tmp_path), Console(file=out, width=200))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    assert [row[4:6] for row in rows if row and row[0] == "report"] == hours  # 15 min of one node
