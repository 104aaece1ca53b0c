"""The scripts a user copies: run as a user runs them, on the hand-made campaign."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ANALYSIS = Path(__file__).parents[2] / "analysis"


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(ANALYSIS / script), *map(str, arguments)],
        env={"PYTHONPATH": str(ANALYSIS.parent), "PATH": "/usr/bin:/bin", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_table_goes_to_the_terminal_or_a_file(shared_campaign: Path, tmp_path: Path) -> None:
    assert "113.7 [113.1, 114.3]" in run("table.py", shared_campaign)
    run("table.py", shared_campaign, "-o", tmp_path / "t.md")
    assert "| 113.7 [113.1, 114.3] |" in (tmp_path / "t.md").read_text(encoding="utf-8")


def test_curves_are_drawn(shared_campaign: Path, tmp_path: Path) -> None:
    assert run("curves.py", shared_campaign, "-o", tmp_path / "c.pdf").split() == [str(tmp_path / "c.pdf")]
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
