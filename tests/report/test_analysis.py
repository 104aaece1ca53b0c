"""The scripts a user copies: run as a user runs them, on the hand-made campaign."""

from __future__ import annotations

from pathlib import Path

from paper_scripts import said_by


def test_table_goes_to_the_terminal_or_a_file(shared_campaign: Path, tmp_path: Path) -> None:
    assert "113.7 [113.1, 114.3]" in said_by("table", shared_campaign)
    said_by("table", shared_campaign, "-o", tmp_path / "t.md")
    assert "| 113.7 [113.1, 114.3] |" in (tmp_path / "t.md").read_text(encoding="utf-8")


def test_curves_are_drawn(shared_campaign: Path, tmp_path: Path) -> None:
    assert said_by("curves", shared_campaign, "-o", tmp_path / "c.pdf").split() == [str(tmp_path / "c.pdf")]
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
