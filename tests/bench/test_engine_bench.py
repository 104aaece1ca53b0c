"""The engine's benchmark script: parts of it run, quantities are told apart, verdicts are what the bar says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


def test_early_receives_and_receives_at_use_are_measured_in_turn(bar, monkeypatch) -> None:
    runs = importlib.import_module("support.engine_runs")
    asked = []

    def run(schedules, problem, configs, model, layers):
        records = {}
        for how in schedules:
            asked.append((how, configs[how].post_ahead_ms))
            took = next(speed) * (1.25 if how == "at use" else 1.0)
            records[how] = SimpleNamespace(measured=[SimpleNamespace(makespan_ns=took)] * 2)
        costs = problem.costs[0][0]
        assert [costs.duration_ns(kind) for kind in "FDW"] == [38_000_000, 46_000_000, 21_000_000]
        assert problem.message_hop("F", 1).serialisation_ns == 76_000_000
        return records

    monkeypatch.setattr(runs, "_run", run)
    for name in runs.STATIC:
        asked.clear()
        speed = iter([n for n in range(1, 6) for _ in range(2)])  # the machine gets slower and slower
        assert runs._early(name, (0.25, 2), False, lambda words: None) == {
            f"{name} {runs.label((0.25, 2))}: posted at use over early": pytest.approx([25.0] * 5)
        }
        assert [how for how, _ in asked] == ["at use", "early", "early", "at use"] * 2 + ["at use", "early"]
        assert {ahead for how, ahead in asked if how == "at use"} == {None}
        assert None not in {ahead for how, ahead in asked if how == "early"}


@pytest.mark.parametrize(
    ("median", "least", "verdict"),
    [(1.0, False, "aim met"), (1.02, False, "must met"), (1.04, False, "**missed**"), (1.04, True, "aim met")],
)
def test_verdicts(bar, median, least, verdict) -> None:
    results = importlib.import_module("support.results")
    asked = bar.Asked("Section", "key", "ratio", 1.03, 1.0, least)
    assert asked.verdict(results.Speed(key="key", finished="", spread=spread([median]), unit="ratio")) == verdict
