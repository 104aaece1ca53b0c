"""`analysis/reproduce.py`: from nothing to the page, by a list; what is no result stops it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ANALYSIS = Path(__file__).parents[2] / "analysis"
SMALL = (
    '"experiment=fig15", "pipeline.stages=2", "pipeline.microbatches=2", "network.delay=[1,0]", "cluster=debug", '
    '"pipeline.memory_microbatches={memory}"'
)


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ANALYSIS)
    return importlib.import_module("reproduce")


@pytest.fixture
def call(reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    def called(lines: str, *arguments: str) -> Path:
        (tmp_path / "list.toml").write_text(lines, encoding="utf-8")
        monkeypatch.setattr(reproduce, "LIST", tmp_path / "list.toml")
        told = ["reproduce.py", "-o", str(tmp_path / "out"), "--work", str(tmp_path / "work"), *arguments]
        monkeypatch.setattr(sys, "argv", told)
        reproduce.main()
        return tmp_path / "out"

    return called


def test_every_listed_experiment_and_script_exists(reproduce: ModuleType) -> None:
    configs = {path.stem for path in (ANALYSIS.parent / "conf" / "experiment").glob("*.yaml")}
    for name, experiment in reproduce.experiments().items():
        (chosen,) = (text.partition("=")[2] for text in experiment.run if text.startswith("experiment="))
        assert chosen in configs, name
        assert all((ANALYSIS / f"{script}.py").is_file() for script in experiment.scripts), name


def test_from_nothing_to_the_page(call: object, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out" / "small").mkdir(parents=True)
    (tmp_path / "out" / "small" / "stale.png").write_text("of an older run")
    run = SMALL.format(memory=1)  # one microbatch: 1F1B with two stages holds two on the first, and does not fit
    out = call(f'small = {{title = "Small", run = [{run}, "schedule=1f1b,cross_ud"], scripts = ["fig15"]}}\n')
    assert not (out / "small" / "stale.png").exists()
    made = json.loads((out / "small" / "made.json").read_text())
    assert made["points"] == {"infeasible": 1, "done": 1}
    said = capfd.readouterr().out
    assert "solve 1/2: 1f1b infeasible" in said or "solve 2/2: 1f1b infeasible" in said
    assert "1 point does not fit the memory, which is a result: the report has it" in said
    assert "retry" not in said  # it would fail the same way
    page = (out / "README.md").read_text(encoding="utf-8")
    assert "## small: Small" in page
    assert "1 infeasible, 1 done points" in page
    assert f"commit {made['commit']}; " in page
    # F = D = W = T_F, latency T_F, one in flight: F, link, F, D, link, D and W, twice
    assert "| cross_ud | 14.00 |" in page
    assert "![fig15_cross_ud](small/fig15_cross_ud.png)" in page


def test_a_point_that_failed_otherwise_is_no_result(call: object) -> None:
    run = SMALL.format(memory=2).replace("pipeline.stages=2", "pipeline.stages=3")
    with pytest.raises(SystemExit, match=r"broken: .*crosspipe run ended with 2|broken: .* is failed: "):
        call(f'broken = {{title = "Broken", run = [{run}, "schedule=1f1b"], scripts = ["fig15"]}}\n')


def test_a_folder_of_others_is_not_emptied(call: object, tmp_path: Path) -> None:
    (tmp_path / "work" / "store").mkdir(parents=True)
    with pytest.raises(SystemExit):
        call('fig15 = {title = "Strides"}\n')
    assert (tmp_path / "work" / "store").is_dir()
