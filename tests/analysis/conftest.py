"""The paper's experiments, run in part as a user runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from paper_scripts import written

from crosspipe.cli import main

Simulate = Callable[..., Path]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Runs a part of an experiment and its script; returns the folder of what the script wrote."""
    monkeypatch.chdir(tmp_path)

    def simulated(experiment: str, *overrides: str) -> Path:
        where = ["cluster=debug", "store=store", "campaign_dir=campaign"]
        assert main(["run", f"experiment={experiment}", *overrides, *where]) == 0
        return written(experiment, tmp_path / "campaign")

    return simulated
