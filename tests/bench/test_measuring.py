"""The measuring benchmark: what its rows judge, and a quick run whose exact rows come out exact."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from crosspipe.problem import Spread

HERE = Path(__file__).parent


def spread(median: float, low: float, high: float) -> Spread:
    return Spread(median=median, low=low, high=high, samples=15)


def test_a_ratio_is_met_near_one_or_by_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    check = importlib.import_module("support.measuring_check")
    ratio = check.ratio("r", lambda: [1.0])
    assert ratio.met_by(spread(1.04, 1.02, 1.06))
    assert ratio.met_by(spread(1.2, 0.9, 1.4))
    assert not ratio.met_by(spread(1.2, 1.1, 1.4))
    assert not ratio.met_by(Spread(median=1.2, low=None, high=None, samples=2))
    exact = check.exact("e", "bytes", lambda: 0)
    assert exact.met_by(exact.measured().spread)
    assert not exact.met_by(spread(1, 1, 1))
    alpha = check.Check("a", "ms", "", 0.6, lambda: [0.0])
    assert alpha.met_by(spread(-0.5, -0.7, -0.3))
    assert not alpha.met_by(spread(0.7, 0.1, 0.9))


@pytest.mark.serial
def test_a_quick_run_is_exact_where_it_must_be_and_judges_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "measuring.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    _, *results = (msgspec.json.decode(line) for line in (tmp_path / "measuring.jsonl").read_bytes().splitlines())
    exact = {result["unit"]: result["spread"]["median"] for result in results if result["unit"] != "ratio"}
    assert exact == {"bytes": 0, "FLOP": 0, "pairs": 0}
    ratios = [result["spread"] for result in results if result["unit"] == "ratio"]
    assert [found["samples"] for found in ratios] == [3, 2]
    page = (tmp_path / "measuring.md").read_text()
    assert page.count("not judged") == 5
    assert "not measured |" not in page
