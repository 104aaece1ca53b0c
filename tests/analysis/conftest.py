"""The paper's experiments, run in part as a user runs them; and scripts, called in this process, which is quicker."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from paper_scripts import ANALYSIS, written

from crosspipe.cli import main

Simulate = Callable[..., Path]
Ended = Callable[..., str]


@pytest.fixture
def solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Runs a part of an experiment; returns its campaign."""
    monkeypatch.chdir(tmp_path)

    def ran(experiment: str, *overrides: str) -> Path:
        where = ["cluster=debug", "store=store", "campaign_dir=campaign"]
        assert main(["run", f"experiment={experiment}", *overrides, *where]) == 0
        return tmp_path / "campaign"

    return ran


@pytest.fixture
def simulate(solved: Simulate) -> Simulate:
    """Runs a part of an experiment and its script; returns the folder of what the script wrote."""
    return lambda experiment, *overrides: written(experiment, solved(experiment, *overrides))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Calls a script as `python analysis/NAME.py ARGUMENTS` does; returns what it ends with on stderr, or ""."""
    monkeypatch.syspath_prepend(ANALYSIS)

    def called(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        said: object = ""
        try:
            runpy.run_path(str(ANALYSIS / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            said = end.code
        finally:
            plt.close("all")
        assert isinstance(said, str)  # which Python prints to stderr, and ends with exit code 1
        return said

    return called
