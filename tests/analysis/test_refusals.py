"""What a script says of a campaign that it cannot draw, or not whole: one line, and no picture of something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paper_scripts import ANALYSIS, run_script, script, write_runs, write_solved

from crosspipe.problem import Problem

Ended = Callable[..., str]
SCRIPTS = sorted(path.stem for path in ANALYSIS.glob("*.py") if "run(main)" in path.read_text())
EMPTY = "not in this campaign, or not finished; run the whole experiment, or wait for it"


def config(sites: int = 2, stages: int = 8, microbatches: int = 16, **network: Any) -> dict[str, Any]:
    """A configuration as far as scripts look at it: case 1 of tables 5 and 6."""
    pipeline = {"sites": sites, "stages": stages, "microbatches": microbatches, "memory_microbatches": 8}
    return {
        "pipeline": pipeline | {"memory_mib": None, "replicas": 1},
        "network": network or {"delay": [0, 0]},
        "costs": {"recompute": False},
        "run": {"post_ahead_ms": 0},
    }


def point(
    schedule: str, latency: float, bandwidth: float, takes_ms: float | None = 100, **changed: Any
) -> dict[str, Any]:
    """A point of two stages with T_F = 10 ms that takes so long; None: not solved."""
    found = {
        "schedule": schedule, "config": config(),
        "labels": {"model": "m70", "latency_ratio": latency, "bandwidth_ratio": bandwidth},
    }  # fmt: skip
    if takes_ms is not None:
        shape = {"stages": 2, "microbatches": 2, "sites": 2, "forward_ms": 10, "input_grad_ms": 10}
        link = {"latency_ms": 10 * latency, "serialisation_ms": 10 * bandwidth}
        found |= {"problem": Problem.uniform(**shape, weight_grad_ms=10, **link), "predicted_ms": takes_ms}
    return found | changed


def test_every_script_ends_in_a_line_where_there_is_no_campaign() -> None:
    assert {"fig8", "table5", "table", "curves", "wan", "insight"} < set(SCRIPTS)
    left = {path.stem for path in ANALYSIS.glob("*.py") if "__main__" in path.read_text()} - set(SCRIPTS)
    assert left == {"reproduce"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_misspelt_campaign_is_told_in_a_line_and_not_made(tmp_path: Path, ended: Ended, name: str) -> None:
    out = ["-o", tmp_path / "x.pdf"] if name == "curves" else []
    said = ended(name, tmp_path / "typo", *out)
    assert said.startswith(f"{tmp_path / 'typo'}: no campaign.json in it, so this is no campaign directory; ")
    assert list(tmp_path.iterdir()) == []


def test_the_line_goes_to_stderr_with_exit_code_1(tmp_path: Path) -> None:
    done = run_script("fig14", tmp_path / "typo")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"{tmp_path / 'typo'}: no campaign.json in it")


@pytest.mark.parametrize(("name", "sites"), [("table5", 4), ("insight", 4), ("table6", 2)])
def test_a_table_of_other_sites_names_the_script_for_it(tmp_path: Path, ended: Ended, name: str, sites: int) -> None:
    points = [point(s, 0, 0, config=config(sites=sites)) for s in ("zbh1", "cross_ud")]
    assert ended(name, write_solved(tmp_path, points), "-o", tmp_path / "out") == (
        f"{tmp_path / 'campaign'}: pipeline.sites is {sites} in this campaign (by hand); table5.py draws two sites and "
        "table6.py four, of 8 stages in all, with delays in T_F (network.delay) and recomputation told "
        "(costs.recompute)"
    )
    assert not (tmp_path / "out").exists()


OTHERS = {
    "table5": "pipeline.stages is 4",
    "insight": "pipeline.stages is 4",
    "table6": "pipeline.sites is 2",
    "fig8": "2 points have zbh1, (0, 0)",
    "fig9": "costs.tflop_per_s is not given",
    "fig11": "(0, 0) is the only delay",
    "fig12": "pipeline.memory_mib is not given",
    "fig14": "2 points have zbh1, 2",
    "fig15": "2 points have zbh1, (0, 0)",
    "fig17": "pipeline.stages is 4",
    "headline": "2 points have zbh1, early",
    "wan": "the link is emulated",
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_script_draws_another_experiment_as_its_own(tmp_path: Path, ended: Ended, name: str) -> None:
    """Two batches at one delay, run by four stages: a figure of none."""
    runs = [
        point("zbh1", 0, 0, config=config(stages=4, microbatches=count), bound_ms=90, measured_ms=[100] * 6)
        for count in (16, 32)
    ]
    said = ended(name, write_runs(tmp_path, runs), "-o", tmp_path / "out")
    assert said.startswith(f"{tmp_path / 'campaign'}: {OTHERS[name]} in this campaign (by hand); {name}.py ") or (
        name in ("table5", "table6", "insight") and f"{OTHERS[name]} in this campaign (by hand); table5.py " in said
    )
    assert "\n" not in said
    assert not (tmp_path / "out").exists()


IN_MS = {"latency_ms": 4, "bandwidth_gbit_per_s": 1}


@pytest.mark.parametrize("name", ["fig11", "fig12", "fig14", "fig15"])
def test_where_nothing_is_solved_the_script_says_so(tmp_path: Path, ended: Ended, name: str) -> None:
    made = config(**IN_MS) if name == "fig12" else config()
    made["pipeline"]["memory_mib"] = 1024
    waiting = [point("zbh1", latency, 0, None, config=made) for latency in (0, 1)]
    assert ended(name, write_solved(tmp_path, waiting), "-o", tmp_path / "out") == f"a schedule: {EMPTY}"


@pytest.mark.parametrize(("sites", "missing"), [(2, "one site"), (1, "two sites")])
def test_fig9_names_the_half_that_is_missing(tmp_path: Path, ended: Ended, sites: int, missing: str) -> None:
    made = config(sites=sites, **IN_MS) | {"costs": {"tflop_per_s": 500}}
    problem = Problem.uniform(
        stages=2, microbatches=2, sites=sites, forward_ms=10, input_grad_ms=10, weight_grad_ms=10, latency_ms=4
    )
    points = [point("zbv", 0, 0, config=made, problem=problem)]
    assert ended("fig9", write_solved(tmp_path, points), "-o", tmp_path / "out") == f"{missing}: {EMPTY}"


def test_fig11_without_a_point_free_of_latency_draws_what_there_is(
    tmp_path: Path, ended: Ended, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [point(s, latency, 0, 100 + 10 * latency) for s in ("zbh1", "cross_ud") for latency in (1, 2)]
    assert ended("fig11", write_solved(tmp_path, points), "-o", tmp_path / "out") == ""
    assert "ZB-H1 without latency: not solved in this campaign" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fig11.pdf", "fig11.png", "fig11.svg"]


def test_fig8_without_the_greedy_has_no_picture_of_its_gap(
    tmp_path: Path, ended: Ended, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [point(s, latency, 0, 100 + 10 * latency) for s in ("zbv", "1f1b") for latency in (0, 1)]
    assert ended("fig8", write_solved(tmp_path, points), "-o", tmp_path / "out") == ""
    assert "cross_ud_sub: not solved in this campaign, so there is no picture of its gap" in capsys.readouterr().out
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"fig8"}


def test_tables_of_an_unfinished_campaign_say_so(tmp_path: Path, ended: Ended) -> None:
    """Of four points one waits; that another does not fit the memory is a result."""
    points = [point("zbv", 0, 0), point("zbv", 1, 0), point("zbv", 2, 0, None)]
    points.append(point("zbh2", 0, 0, None, needs="activation_limit_bytes[0] = 1: too small; give more"))
    assert ended("fig8", write_solved(tmp_path, points), "-o", tmp_path / "out") == ""
    assert "\n3 of 4 points are solved; the rest is missing.\n" in (tmp_path / "out" / "fig8.md").read_text()


def test_a_finished_campaign_has_no_such_note(tmp_path: Path, ended: Ended) -> None:
    points = [point("zbv", 0, 0), point("zbv", 1, 0)]
    assert ended("fig8", write_solved(tmp_path, points), "-o", tmp_path / "out") == ""
    assert "points are" not in (tmp_path / "out" / "fig8.md").read_text()


def test_fig9_sets_the_published_value_beside_what_it_is_of() -> None:
    table = pl.DataFrame(
        {
            "schedule": ["zbv", "zbh1", "cross_ud"], "latency_ms": [4.0] * 3, "bandwidth_gb_per_s": [4.0] * 3,
            "data_parallel_over_pipeline": [2.0, 2.5, 6.1], "pipeline_over_one_site": [2.0] * 3,
        }
    )  # fmt: skip
    rows = {row["schedule"]: row for row in script("fig9").claims(table, True).iter_rows(named=True)}
    assert [rows[name]["published"] for name in ("zbv", "zbh1", "cross_ud")] == ["–", "–", "3.05"]
    assert rows["cross_ud"]["ours/published"] == pytest.approx(2.0)
    assert rows["zbv"]["ours/published"] is None
