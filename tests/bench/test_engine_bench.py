"""The engine's benchmark script: parts of it run, quantities are told apart, verdicts are what the bar says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from crosspipe.problem.spread import spread

HERE = Path(__file__).parent


@pytest.fixture
def bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("support.engine_bar")


@pytest.mark.serial
def test_what_is_measured_is_saved_and_shown(tmp_path: Path) -> None:
    only = ("--quick", "--only", "cost per action|held after D", "--out", str(tmp_path))
    command = [sys.executable, str(HERE / "engine.py"), *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    _, *results = (msgspec.json.decode(line) for line in (tmp_path / "engine.jsonl").read_bytes().splitlines())
    assert [r["key"] for r in results] == ["cost per action", "activations held after D, of those after F"]
    assert 0 < results[1]["spread"]["median"] < 100
    page = (tmp_path / "engine.md").read_text()
    assert "| cost per action | µs |" in page
    assert "## Makespan" not in page  # not measured


def test_quantities_have_names_of_their_own(bar) -> None:
    parts, runs, against = (importlib.import_module(f"support.engine_{name}") for name in ("parts", "runs", "torch"))
    kinds = (parts.part_groups, against.torch_groups, runs.makespan_groups, runs.early_groups)
    for quick in (True, False):
        keys = [one.key for kind in kinds for group in kind(quick=quick) for one in group.asked]
        assert len(set(keys)) == len(keys)
    # four schedules at five pairs of delays, five quantities each
    assert sum(len(group.asked) for group in runs.makespan_groups(quick=False)) == 100


@pytest.mark.parametrize(
    ("median", "least", "verdict"),
    [(1.0, False, "aim met"), (1.02, False, "must met"), (1.04, False, "**missed**"), (1.04, True, "aim met")],
)
def test_verdicts(bar, median, least, verdict) -> None:
    results = importlib.import_module("support.results")
    asked = bar.Asked("Section", "key", "ratio", 1.03, 1.0, least)
    assert asked.verdict(results.Speed(key="key", finished="", spread=spread([median]), unit="ratio")) == verdict
