"""`crosspipe advise` as a user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosspipe import Problem, save
from crosspipe.cli import main
from crosspipe.cli.advise import layouts


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("wide")
def test_a_problem_file_is_advised_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages on two sites, two microbatches, 10 ms a block and 10 ms of latency: ZB-H1 takes 90 ms, proven optimal,
    1F1B 110 ms (tests/report/conftest works both out)."""
    problem = Problem.uniform(
        stages=2, microbatches=2, sites=2, forward_ms=10, input_grad_ms=10, weight_grad_ms=10, latency_ms=10,
        memory_microbatches=2,
    )  # fmt: skip
    save(tmp_path / "problem.json", problem)
    assert main(["advise", str(tmp_path / "problem.json"), "--time-limit", "0.3", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "T_F 10 ms; a message across sites takes 10 ms + 0 ms on the wire (1 + 0 T_F)" in out
    rows: dict[str, str] = {}  # of the first table
    for line in out.splitlines():
        if line.startswith("│"):
            rows.setdefault(line.split("│")[1].split()[0], line)
    assert "90 ms" in rows["zbh1"]
    assert "optimal" in rows["zbh1"]
    assert "110 ms" in rows["1f1b"]
    assert "22.22%" in rows["1f1b"]  # 110 / 90
    assert "Why not less: " in out
    assert "What helps most: " in out


@pytest.mark.usefixtures("wide")
def test_overrides_are_advised_on_with_every_split_of_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    what = [
        "model=m8", "costs=analytic", "network.delay=[1,1]", "pipeline.stages=4", "pipeline.replicas=2",
        "pipeline.microbatches=4",
    ]  # fmt: skip
    assert main(["advise", *what, "--time-limit", "0.2", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    splits = [line.split("│")[1:3] for line in out.splitlines() if line.startswith("│") and " × " in line.split("│")[1]]
    found = {split.strip(): batch.strip() for split, batch in splits if "the" not in split}
    assert found == {"4 × 2": "4", "8 × 1": "8", "2 × 4": "2"}  # 8 groups of devices, 8 microbatches in all
    assert list(tmp_path.iterdir()) == []


def test_all_layouts_have_the_link_of_the_one_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One T_F of latency, and one for the message of both replicas: the same ms and Gbit/s for all."""
    monkeypatch.chdir(tmp_path)
    what = [
        "model=m8", "costs=analytic", "network.delay=[1,1]", "pipeline.stages=4", "pipeline.replicas=2",
        "pipeline.microbatches=4",
    ]  # fmt: skip
    asked, *others = layouts(what)
    assert sorted((x.stages, x.replicas) for x in others) == [(2, 4), (8, 1)]
    reference_ns = asked.problems["ud"].forward_reference_ns()
    for layout in (asked, *others):
        problem = layout.problems["ud"]
        (hop,) = [h for h in problem.forward_hops if h.wire is not None]
        assert hop.latency_ns == pytest.approx(reference_ns, abs=2)
        assert hop.serialisation_ns == pytest.approx(reference_ns * layout.replicas / 2, abs=3)


def test_layers_given_are_layers_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    what = ["model=m8", "costs=analytic", "network.delay=[1,1]", "pipeline.stages=2", "pipeline.microbatches=4"]
    plain, *_ = layouts(what)
    total = sum(row[0].forward_ns for row in plain.problems["ud"].costs)
    given, *_ = layouts([*what, "pipeline.layers=[29,1]"])
    assert set(given.problems) == {"ud"}  # they are layers of one chunk a stage
    first, last = (row[0].forward_ns for row in given.problems["ud"].costs)
    assert first > 2 * last
    assert first + last == pytest.approx(total, rel=1e-6)


def test_what_cannot_be_advised_on_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["advise", "model=m8"]) == 2
    assert "costs = 'measured': advice needs block times before anything has run" in capsys.readouterr().err
    assert main(["advise", "costs=analytic", "pipeline.microbatches=4,8"]) == 2
    assert "these are 2 points; ask about one at a time" in capsys.readouterr().err
    assert main(["advise", "nowhere.json"]) == 1
    assert "nowhere.json: no such file" in capsys.readouterr().err
