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
    assert " of 2 bars are met, 0 rows reported." in page
    assert "## Makespan" not in page
    assert "- Makespan: 10 rows" in page.partition("## Not measured")[2]


def test_quantities_have_names_of_their_own(bar) -> None:
    engine = importlib.import_module("engine")
    for quick in (True, False):
        keys = [one.key for kind in engine.KINDS for group in kind(quick=quick) for one in group.asked]
        assert len(set(keys)) == len(keys)
    # four schedules at five pairs of delays, five quantities each
    runs = importlib.import_module("support.engine_runs")
    assert sum(len(group.asked) for group in runs.makespan_groups(quick=False)) == 100


def test_early_receives_and_receives_at_use_are_measured_in_turn(bar, monkeypatch) -> None:
    runs = importlib.import_module("support.engine_runs")
    asked, speed = [], iter([1, 1, 2, 2])  # the machine gets slower and slower

    def execute(schedules, problem, run, model, layers):
        asked.append("at use" if run.post_ahead_ms is None else "early")
        took = next(speed) * (1.25 if asked[-1] == "at use" else 1.0)
        costs = problem.costs[0][0]
        assert [costs.duration_ns(kind) for kind in "FDW"] == [19_000_000, 23_000_000, 10_500_000]
        assert problem.message_hop("F", 1).serialisation_ns == 38_000_000
        return {name: SimpleNamespace(measured=[SimpleNamespace(makespan_ns=took)] * 3) for name in schedules}

    monkeypatch.setattr(runs, "execute", execute)
    assert runs._early(runs.STATIC, (0.25, 2), False, lambda words: None) == {
        f"{name} {runs.label((0.25, 2))}: posted at use over early": pytest.approx([25.0] * 6) for name in runs.STATIC
    }
    assert asked == ["at use", "early", "early", "at use"]


def test_a_searched_schedule_is_compared_with_the_static_one_that_was_fastest(bar) -> None:
    wan = importlib.import_module("support.engine_wan")
    predicted = {"1f1b": 1000, "zbh1": 900, "cross_ud": 800, "cross_wave": 795}
    measured = {"1f1b": [990, 1100], "zbh1": [1000, 1200], "cross_ud": [840, 880], "cross_wave": [835, 990]}
    found = wan.compared("here", predicted, measured)
    assert found["here: 1f1b, off the prediction"] == pytest.approx([-1, 10])
    # the fastest here is 1f1b (1045 in the middle), though zbh1 was predicted to be: 1 - 840/990, 1 - 880/1100
    assert found["here: cross_ud, gain"] == pytest.approx([15.1515, 20], abs=1e-3)
    assert found["here: cross_ud, gain as predicted"] == pytest.approx([20])
    # 1f1b before zbh1 twice; cross_ud and cross_wave are too close to have an order
    assert found["here: iterations in the predicted order of the schedules"] == [0]
    in_order = {**measured, "zbh1": [980, 1090]}
    assert wan.compared("here", predicted, in_order)["here: iterations in the predicted order of the schedules"] == [
        100
    ]


def test_an_interval_of_p95_needs_72_samples(bar) -> None:
    """0.95^72 = 2.49 % is the chance that all of 72 samples lie below the percentile; 0.95^71 = 2.62 %."""
    parts = importlib.import_module("support.engine_parts")
    few, enough = (parts.percentile([float(n) for n in range(1, count + 1)], 0.95) for count in (71, 72))
    assert (few.low, few.high, few.median) == (None, None, 68)  # 95 % of 71 samples are 67.45
    assert (enough.high, enough.median, enough.samples) == (72, 69, 72)
    assert enough.low < 69


@pytest.mark.parametrize(
    ("samples", "asked", "verdict"),
    [
        ([1.0], {"must": 1.03, "aim": 1.0}, "aim met"),
        ([1.02], {"must": 1.03, "aim": 1.0}, "must met"),
        ([1.04], {"must": 1.03, "aim": 1.0}, "**missed**"),
        ([1.04], {"must": 1.03, "aim": 1.0, "least": True}, "aim met"),
        ([1.02], {"must": 1.03}, "met"),
        ([1.0], {}, "reported"),
        ([90.0], {"aim": 100, "least": True}, "aim missed"),
        ([1.0] * 5 + [2.1], {"must": 2}, "met"),  # the median alone
        ([1.0] * 5 + [2.1], {"must": 2, "each": True}, "**missed**"),  # of six samples the interval has all
        ([1.0] * 5 + [1.9], {"must": 2, "each": True, "aim": 0.5}, "must met"),
    ],
)
def test_verdicts(bar, samples, asked, verdict) -> None:
    one = bar.Asked("Section", "key", "%", **asked)
    assert one.verdict(one.result({"key": samples}, "")) == verdict


def test_what_could_not_be_measured_as_asked_is_reported_and_what_could_not_be_at_all_is_named(bar) -> None:
    page = importlib.import_module("support.engine_page")
    late, missed, missing = (
        bar.Asked(section, f"{section} row", "ms", 0.1) for section in ("Emulated delay", "Engine", "Shaped TCP")
    )
    samples = {late.key: bar.Measured(spread([3.0]), "ms late"), missed.key: [0.2]}
    groups = [
        bar.Group((late, missed), lambda show: samples),
        bar.Group((missing,), lambda show: {}, lambda: "needs root"),
    ]
    found = {one.key: (None, one.result(samples, "")) for one in (late, missed)}
    text = "\n".join(page.engine_page(groups, found))
    assert "0 of 1 bars are met, 1 rows reported." in text
    assert "Missed:\n\n- Engine row" in text
    assert "| Emulated delay row | ms late | 3 | – | 1 | – | – | reported |" in text
    assert "- Shaped TCP: 1 rows; needs root" in text
