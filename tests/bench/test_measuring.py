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


def test_a_ratio_is_met_near_one_or_by_a_narrow_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    check = importlib.import_module("support.measuring_check")
    ratio, near = check.ratio("r", lambda: [1.0]), check.near("n", lambda: [1.0])
    for seen, to_a_rival, to_the_bar in (
        (spread(1.04, 1.02, 1.06), "met", "met"),
        (spread(1.07, 0.99, 1.08), "met", "missed"),  # the interval holds 1: enough against a rival only
        (spread(1.07, 1.05, 1.09), "missed", "missed"),
        (spread(1.01, 0.9, 1.4), "not settled", "not settled"),  # says that the machine was busy, not that all is well
        (Spread(median=1.0, low=None, high=None, samples=2), "not settled", "not settled"),
    ):
        assert (ratio.verdict(seen), near.verdict(seen)) == (to_a_rival, to_the_bar)
    exact = check.exact("e", "bytes", lambda: 0)
    assert exact.verdict(exact.measured().spread) == "met"
    assert exact.verdict(spread(1, 1, 1)) == "missed"
    alpha = check.Check("a", "ms", "", 0.6, lambda: [0.0])
    assert alpha.verdict(spread(-0.5, -0.7, -0.3)) == "met"
    assert alpha.verdict(spread(0.7, 0.1, 0.9)) == "missed"


@pytest.mark.serial
def test_a_quick_run_is_exact_where_it_must_be_and_judges_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "measuring.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    _, *results = (msgspec.json.decode(line) for line in (tmp_path / "measuring.jsonl").read_bytes().splitlines())
    exact = {result["unit"]: result["spread"]["median"] for result in results if result["unit"] != "ratio"}
    assert exact == {"bytes": 0, "FLOP": 0, "pairs": 0}
    ratios = [result["spread"] for result in results if result["unit"] == "ratio"]
    assert [found["samples"] for found in ratios] == [3, 3, 3, 2]
    page = (tmp_path / "measuring.md").read_text()
    assert page.count("not judged") == 7
    assert "not measured |" not in page
