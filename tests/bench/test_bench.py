"""The benchmark scripts: a run goes on where it stopped, verdicts are what the bar says, the bar knows its families."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

HERE = Path(__file__).parent


@pytest.fixture
def support(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The scripts' own modules, as the scripts import them."""
    monkeypatch.syspath_prepend(str(HERE))
    names = ("bar", "instances", "results", "setup")
    return SimpleNamespace(**{name: importlib.import_module(f"support.{name}") for name in names})


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / script), "--workers", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_result_is_measured_once_and_written_down(tmp_path: Path) -> None:
    """4 x 8, limit 4, (2, 2): work 840, before the first D of stage 0 it idles 442, after the last F 355, so >= 1637.

    R = 3 F + 3 D + 2 * 152 = 556; 442 = F + R - 4 F; 355 = R - 3 (D + W). The search reaches it.
    """
    arguments = ("--quick", "--only", r"4x8, limit 4: ud \(2, 2\)", "--time-limit", "30", "--out", str(tmp_path))
    first = run("scheduler.py", *arguments)
    assert first.returncode == 0, first.stderr
    saved = (tmp_path / "scheduler.jsonl").read_bytes()
    setup, cell = (msgspec.json.decode(line) for line in saved.splitlines())
    assert (cell["makespan_ns"], cell["lower_bound_ns"]) == (1_637_000_000, 1_637_000_000)
    assert cell["faults"] == []
    assert (setup["workers"], setup["seed"]) == (1, 0)
    page = (tmp_path / "scheduler.md").read_text()
    assert "| 1637.00 | 1637.00 | 0.00 % |" in page
    assert setup["cpu"] in page

    again = run("scheduler.py", *arguments)
    assert "0 to go" in again.stderr
    assert (tmp_path / "scheduler.jsonl").read_bytes() == saved

    (tmp_path / "scheduler.jsonl").write_bytes(saved[:-9])  # killed while it wrote
    assert "1 to go" in run("scheduler.py", *arguments, "--list").stderr


def test_an_interrupted_search_is_no_result(tmp_path: Path) -> None:
    """The search itself takes Ctrl-C as its end and returns its best, after less time than the cell is to have."""
    only = ("--only", r"4x8, limit 4: loop \(2, 2\)", "--time-limit", "90", "--out", str(tmp_path))
    command = [sys.executable, str(HERE / "scheduler.py"), "--workers", "1", "--quick", *only]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "1 to go" in running.stderr.readline()
        time.sleep(5)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 130
    assert "call again to go on" in said
    assert not (tmp_path / "scheduler.jsonl").exists()


@pytest.mark.parametrize(
    ("script", "only", "expected"),
    [
        # zbh1 at 4 stages, serialisation and latency above W / 2: once a microbatch, see tests/schedule/test_crossings
        ("crossings.py", r"\(0.25, 2\) zbh1", "| zbh1 | ud | 4 | 8 | 12 | 1.00 | 4 |"),
        # one piece is no piece: three makespans in one
        ("n_sub.py", r"4x8.* \(0, 0\) n_sub 1$", "| 1 | 1 | +0.00 % | +0.00 % | +0.00 % | 1 of 1 |"),
    ],
)
def test_the_studies_run(tmp_path: Path, script: str, only: str, expected: str) -> None:
    done = run(script, "--quick", "--only", only, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert expected in (tmp_path / script.replace(".py", ".md")).read_text()


def test_wrong_options_are_usage_errors(tmp_path: Path) -> None:
    wrong = run("scheduler.py", "--only", "(", "--out", str(tmp_path))
    assert wrong.returncode == 2
    assert "is no regular expression" in wrong.stderr


def test_the_bar_speaks_of_families_that_exist(support: SimpleNamespace) -> None:
    known = {(family.name, t) for family in support.instances.UNIFORM for t in family.traversals}
    assert support.bar.BARS.keys() <= known
    labels = {support.instances.label(delays) for delays in support.instances.DELAYS}
    assert {at for bar in support.bar.BARS.values() for at, _ in bar.at} <= labels


def test_only_what_the_bar_asks_little_of_gets_little_time(support: SimpleNamespace) -> None:
    """60 s a search, unless its gap is not judged."""
    for family in support.instances.UNIFORM:
        for traversal in family.traversals:
            must = support.bar.BARS.get((family.name, traversal), support.bar.REPORTED).must
            judged = must is not None and must.gap is not None
            assert family.limit_s(traversal) == (60 if judged else 10), (family.name, traversal)


def test_keys_are_unique_and_random_problems_can_be_solved(support: SimpleNamespace) -> None:
    instances = list(support.instances.all_instances())
    assert len({instance.key for instance in instances}) == len(instances)
    drawn = [instance.problem for instance in instances if instance.family == "random 4x8"]
    assert len({problem.digest() for problem in drawn}) == 200
    for problem in drawn:
        problem.check_memory_floor()
        assert (problem.stages, problem.microbatches, problem.traversal) == (4, 8, "ud")


@pytest.mark.parametrize(
    ("where", "changes", "words", "missed"),
    [
        # must: proved in 5 s; aim: proved
        (("4x8, limit 4", "ud", "(0, 0)"), {"makespan_ns": 100, "wall_s": 4.9}, "aim met", False),
        (("4x8, limit 4", "ud", "(0, 0)"), {"makespan_ns": 100, "wall_s": 5.1}, "**missed**", True),
        (("4x8, limit 4", "ud", "(0, 0)"), {"makespan_ns": 101, "wall_s": 60.0}, "**missed**", True),
        (("4x8, limit 4", "ud", "(0, 0)"), {"makespan_ns": 101, "time_limit_s": 2.0}, "not judged in 2 s", None),
        # must: gap 3 %; aim: proved
        (("4x8, limit 4", "wave", "(0, 0)"), {"makespan_ns": 103}, "must met", False),
        (("4x8, limit 4", "wave", "(0, 0)"), {"makespan_ns": 104}, "**missed**", True),
        (("4x8, limit 4", "wave", "(0, 0)"), {"makespan_ns": 100}, "aim met", False),
        # must: proved at (0, 0), gap 3.5 % at (2, 2)
        (("8x32, limit 8", "ud", "(0, 0)"), {"makespan_ns": 103}, "**missed**", True),
        (("8x32, limit 8", "ud", "(2, 2)"), {"makespan_ns": 103}, "must met", False),
        # must: gap 0.75 % and the first schedule in 1 s
        (("64x128, limit 64", "ud", "(0, 0)"), {"makespan_ns": 100, "first_s": 1.5}, "**missed**", True),
        (("64x128, limit 64", "ud", "(0, 0)"), {"makespan_ns": 100, "first_s": 0.9}, "aim met", False),
        # must: the first schedule in 1 s, however long the search
        (("64x128, limit 64", "wave", "(0, 0)"), {"first_s": 0.9, "time_limit_s": 10.0}, "must met", False),
        (("64x128, limit 64", "wave", "(0, 0)"), {"first_s": 1.1, "time_limit_s": 10.0}, "**missed**", True),
        # nothing is asked, but never invalid and never worse than static
        (("four sites, 8x16, limit 8", "ud", "(0, 0)"), {"makespan_ns": 150}, "reported", None),
        (("four sites, 8x16, limit 8", "ud", "(0, 0)"), {"statics": {"1f1b": 119}}, "**worse than static**", True),
        (("four sites, 8x16, limit 8", "ud", "(0, 0)"), {"faults": ("stage 0 lacks F0",)}, "**invalid**", True),
    ],
)
def test_verdicts(support: SimpleNamespace, where, changes, words, missed) -> None:
    cell = support.results.Cell(
        **{
            "key": "k",
            "problem_digest": "d",
            "schedule": "cross_ud",
            "time_limit_s": 60.0,
            "finished": "",
            "wall_s": 1.0,
            "first_s": 0.1,
            "makespan_ns": 120,
            "lower_bound_ns": 100,
            **changes,
        }
    )
    verdict = support.bar.judge(cell, *where)
    assert (verdict.words, verdict.missed) == (words, missed)
