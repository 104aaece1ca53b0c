"""What a person reads while a campaign goes on, and where it failed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crosspipe.campaign.display import Bars, Lines, listener, show_summary
from crosspipe.campaign.driver import plan_campaign, run_campaign


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
