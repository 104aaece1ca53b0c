"""The command line: exit codes, errors in one line, what each verb prints and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crosspipe.cli import VERBS, main
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.store import Store, load, save

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command line in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """Two stages on two sites, one microbatch: F 1, D 2, W 3 ms; 4 + 5 ms across sites. Any order takes 27 ms."""
    return save(
        tmp_path / "problem.json",
        Problem.uniform(stages=2, microbatches=1, sites=2, forward_ms=1, input_grad_ms=2, weight_grad_ms=3,
                        latency_ms=4, serialisation_ms=5),
    )  # fmt: skip


def assert_one_line(err: str, *words: str) -> None:
    assert err.startswith("crosspipe: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_help_lists_every_verb_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from crosspipe.cli import main; code = main(['--help']);"
        "heavy = {'numpy', 'torch', 'hydra', 'rich', 'polars', 'msgspec', 'numba'} & set(sys.modules);"
        "assert code == 0 and not heavy, heavy"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert all(f"\n  {verb} " in said.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "run"])
def test_every_verb_has_help_with_its_options(cli: Cli, verb: str) -> None:
    code, out, err = cli(verb, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: crosspipe {verb}")


def test_help_of_run_shows_groups_with_their_choices(cli: Cli) -> None:
    code, out, _ = cli("run", "--help")
    assert code == 0
    for words in ("experiment=demo", "schedule=cross_ud", "network=measured", "dry_run=true", "--cfg job"):
        assert words in out


def test_wrong_usage_is_2_and_one_line(cli: Cli, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = cli("slove")
    assert code == 2
    assert_one_line(err, "did you mean solve?", "run, status, watch")
    code, _, err = cli("solve")
    assert code == 2
    assert_one_line(err, "PROBLEM.json", "crosspipe solve --help")
    code, _, err = cli("solve", "problem.json", "-s", "zbh9")
    assert code == 2
    assert_one_line(err, "schedule = 'zbh9': no such schedule", "1f1b", "zbh1")
    code, _, err = cli("run", "schedule=zbh9")
    assert code == 2
    assert_one_line(err, "Could not find 'schedule/zbh9'", "1f1b")
    code, _, err = cli("run", "schedule=1f1b", "pipeline.sites=3")
    assert code == 2
    assert_one_line(err, "pipeline.sites = 3: 4 stages cannot be split evenly among 3 sites")
    monkeypatch.setenv("PATH", str(problem.parent))  # no Slurm there
    code, _, err = cli("run", "schedule=1f1b", "cluster=slurm")
    assert code == 2
    assert_one_line(err, "cluster.executor = 'slurm'", "cluster=local")
    assert {path.name for path in problem.parent.iterdir()} == {"problem.json"}  # nothing was written


def test_a_wrong_file_is_1_and_one_line(cli: Cli, problem: Path) -> None:
    for verb in ("solve", "show"):
        code, _, err = cli(verb, "nowhere.json")
        assert code == 1
        assert_one_line(err, "nowhere.json: no such file")
    problem.write_text(problem.read_text()[:80])
    code, _, err = cli("solve", "problem.json")
    assert code == 1
    assert_one_line(err, "problem.json: the JSON ends in the middle")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("solve problem.json -s zbh1 -o schedule.png", "-o = 'schedule.png': no such format here; use .json"),
        ("solve problem.json -s zbh1 -o .", "-o = '.': is a folder; give a file in it"),
        ("solve problem.json -s zbh1 -o none/schedule.json", "none is no folder that can be written"),
        ("show problem.json -o problem.gif", "-o = 'problem.gif': no such format here; use .svg, .png, .pdf, .html"),
        ("convert problem.json order.txt", "OUT = 'order.txt': no such format here; use .json, .csv"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    cli: Cli, problem: Path, command: str, words: str
) -> None:
    code, out, err = cli(*command.split())
    assert (code, out) == (2, "")
    assert_one_line(err, words)
    assert [path.name for path in problem.parent.iterdir()] == ["problem.json"]


def test_debug_shows_the_traceback(cli: Cli) -> None:
    with pytest.raises(Exception, match="no such file"):
        cli("solve", "nowhere.json", "--debug")


def test_solve_check_simulate_show_and_convert(cli: Cli, problem: Path, tmp_path: Path) -> None:
    """By hand: F 1, across 9, F 1, D 2, across 9, D 2, W 3 ms = 27 ms."""
    code, out, _ = cli("solve", "problem.json", "-s", "zbh1", "-o", "schedule.json")
    assert code == 0
    assert out.startswith("zbh1: 27.000 ms, proven optimal")
    certificate = load(tmp_path / "schedule.json", Schedule).certificate
    assert certificate is not None
    assert certificate.makespan_ns == 27_000_000

    code, out, _ = cli("check", "problem.json", "schedule.json")
    assert (code, out) == (0, "valid: 27.000 ms\n")

    code, out, _ = cli("simulate", "problem.json", "schedule.json", "-o", "timeline.json")
    assert code == 0
    assert "77.8%" in out  # a stage works 6 of 27 ms
    blocks = json.loads((tmp_path / "timeline.json").read_text())["blocks"]
    assert blocks[0][-1][1:] == [24_000_000, 27_000_000]

    for name in ("picture.svg", "picture.png", "picture.html"):
        code, out, _ = cli("show", "schedule.json", "--problem", "problem.json", "-o", name)
        assert (code, out) == (0, f"{name}\n")
    assert (tmp_path / "picture.svg").read_text().startswith("<svg")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

    assert cli("convert", "schedule.json", "schedule.csv")[0] == 0
    assert (tmp_path / "schedule.csv").read_text().splitlines()[0].startswith("0F0,0I0,0W0")
    assert cli("convert", "schedule.csv", "again.json")[0] == 0
    assert load(tmp_path / "again.json", Schedule).orders == load(tmp_path / "schedule.json", Schedule).orders


def test_show_says_when_a_schedule_is_for_another_problem(cli: Cli, problem: Path, tmp_path: Path) -> None:
    cli("solve", "problem.json", "-s", "zbh1", "-o", "schedule.json")
    assert "on problem.json" in cli("show", "schedule.json")[1]
    other = Problem.uniform(stages=2, microbatches=1, forward_ms=1, input_grad_ms=2, weight_grad_ms=3)
    save(tmp_path / "other.json", other)
    assert "made for another problem" in cli("show", "schedule.json", "--problem", "other.json")[1]
    cli("show", "schedule.json", "--problem", "other.json", "-o", "other.svg")
    cli("show", "schedule.json", "-o", "own.svg")
    assert ">zbh1, optimal (simulated): 27 ms<" in (tmp_path / "own.svg").read_text()
    assert ">zbh1 (simulated): 9 ms<" in (tmp_path / "other.svg").read_text()  # F 1, F 1, D 2, D 2, W 3
    save(problem, other)  # beside it stands another problem now
    assert "every block 1 ms" in cli("show", "schedule.json")[1]


def test_check_says_each_violation_and_exits_1(cli: Cli, problem: Path, tmp_path: Path) -> None:
    cli("solve", "problem.json", "-s", "zbh1", "-o", "schedule.json")
    broken = json.loads((tmp_path / "schedule.json").read_text())
    broken["orders"][1] = [["D", 0, 0, 0, 1], ["F", 0, 0, 0, 1]]
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    code, out, err = cli("check", "problem.json", "broken.json")
    assert (code, err) == (1, "")
    assert any("W0" in line and line.startswith("missing: ") for line in out.splitlines())


def test_show_tells_what_it_cannot_draw(cli: Cli, problem: Path) -> None:
    code, out, _ = cli("show", "problem.json")
    assert code == 0
    assert "4.000 + 5.000" in out
    code, _, err = cli("show", "problem.json", "-o", "problem.svg")
    assert code == 2
    assert_one_line(err, "a problem has no timeline to draw")
    (problem.parent / "other.json").write_text('{"type": "shopping_list"}')
    code, _, err = cli("show", "other.json")
    assert code == 1
    assert_one_line(err, "type = 'shopping_list': nothing to show")


def test_dry_run_shows_the_graph_and_touches_nothing(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("run", "schedule=1f1b,zbh1", "network.delay=[0,0],[1,0.25]", "dry_run=true", "model=tiny")
    assert (code, err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[:5] for row in rows] == [
        ["profile links", "1", "0", "1", "1"],
        ["profile blocks", "1", "0", "1", "1"],
        ["solve", "4", "0", "4", "1"],
        ["run", "4", "0", "4", "1"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_verbs_on_a_folder_that_is_no_campaign(cli: Cli, tmp_path: Path) -> None:
    for verb in ("status", "cancel", "retry", "report", "watch"):
        code, _, err = cli(verb, str(tmp_path))
        assert code == 1
        assert_one_line(err, "campaign.json")


def test_store_ls_without_a_store_says_so(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("store", "ls")
    assert code == 1
    assert_one_line(err, "there is no store here")
    (tmp_path / "crosspipe-store").mkdir()
    assert cli("store", "gc")[1].startswith("removed 0 artifacts")
    assert list(Store("crosspipe-store").references()) == []


def test_output_into_a_closed_pipe_is_no_error(problem: Path) -> None:
    command = f"{sys.executable} -m crosspipe.cli show {problem} | head -1"
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    said = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert said.stderr == ""
