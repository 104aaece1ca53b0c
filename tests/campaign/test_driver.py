"""A campaign from plan to end with stand-in bodies: order, failures, blocking, nothing done twice."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crosspipe.campaign.driver import Summary, first_numbers, plan_campaign, run_campaign
from crosspipe.campaign.launch import launch
from crosspipe.campaign.status import campaign_status, cancel_campaign
from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.report.artifacts import load_campaign


class Deaf:
    """Hears everything, notes what ended."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def begin(self, plan: Any) -> None: ...

    def ended(self, node: Any, status: str, reason: str) -> None:
        self.heard.append((node.request.stage, status))

    def now(self, stage: str, text: str) -> None: ...


def carry_out(points: Any, directory: Path) -> Summary:
    return run_campaign(plan_campaign(points), directory, Deaf(), bodies="standin_bodies")


def made(orders: Path) -> list[str]:
    return [
        line.removeprefix("made ") for line in (orders / "trace").read_text().splitlines() if line.startswith("made")
    ]


def states(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    return {s.stage: (s.done, s.waiting, s.failed, s.blocked) for s in campaign_status(directory).stages}


def test_all_is_made_once_in_the_order_of_the_road(points: Callable[..., Any], orders: Path, tmp_path: Path) -> None:
    summary = carry_out(points(), tmp_path / "campaign")
    assert summary.failures == []
    assert [line.split()[0] for line in made(orders)] == ["links", "blocks"] + ["solve"] * 4 + ["run"] * 4
    campaign = json.loads((tmp_path / "campaign" / "campaign.json").read_text())
    assert [point["name"] for point in campaign["points"]][:2] == ["1f1b_delay-0-0", "1f1b_delay-1-0.25"]
    assert campaign["cached"] == []
    assert states(tmp_path / "campaign") == {
        "links": (1, 0, 0, 0), "blocks": (1, 0, 0, 0), "solve": (4, 0, 0, 0), "run": (4, 0, 0, 0),
    }  # fmt: skip


def test_called_again_it_does_nothing_and_grown_it_does_the_rest(
    points: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    carry_out(points(), tmp_path / "one")
    plan = plan_campaign(points())
    assert plan.missing == ()
    carry_out(points(), tmp_path / "two")
    assert len(made(orders)) == 10
    assert len(json.loads((tmp_path / "two" / "campaign.json").read_text())["cached"]) == 10
    carry_out(points(run__iterations=20), tmp_path / "three")
    assert [line.split()[0] for line in made(orders)[10:]] == ["run"] * 4


def test_a_failure_ends_its_point_only_and_a_retry_completes(
    points: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    (orders / "fail-run").write_text("zbh1_delay-0-0")
    summary = carry_out(points(), tmp_path / "campaign")
    assert [(node.points, outcome.reason) for node, outcome in summary.failures] == [
        (("zbh1_delay-0-0",), "rank 2 died at run zbh1_delay-0-0")
    ]
    assert states(tmp_path / "campaign")["run"] == (3, 0, 1, 0)
    (orders / "fail-run").unlink()
    assert carry_out(points(), tmp_path / "campaign").failures == []
    assert states(tmp_path / "campaign")["run"] == (4, 0, 0, 0)
    assert sorted(made(orders)) == sorted(set(made(orders)))


def test_what_needs_a_failed_input_is_blocked_with_its_reason(
    points: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    (orders / "fail-solve").write_text("1f1b")
    summary = carry_out(points(), tmp_path / "campaign")
    assert [outcome.status for _, outcome in summary.failures] == ["failed", "failed", "blocked", "blocked"]
    assert summary.failures[2][1].reason == "its input solve failed: rank 2 died at solve 1f1b_delay-0-0"
    assert states(tmp_path / "campaign") == {
        "links": (1, 0, 0, 0), "blocks": (1, 0, 0, 0), "solve": (2, 0, 2, 0), "run": (2, 0, 0, 2),
    }  # fmt: skip


def test_a_fault_of_ours_is_an_outcome_too(
    points: Callable[..., Any], orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import standin_bodies

    def broken(makings: Any, context: Any) -> Any:
        yield from ()
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(standin_bodies.BODIES, "links", broken)
    summary = carry_out(points(), tmp_path / "campaign")
    assert summary.failures[0][1].reason == "ZeroDivisionError: oh"
    assert [outcome.status for _, outcome in summary.failures[1:]] == ["blocked"] * 8


def test_a_cluster_that_cannot_be_reached_is_refused_before_anything_is_written(
    config: dict[str, Any], change: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"cluster\.executor = 'slurm'.*use cluster=local"):
        launch([change(config, cluster__executor="slurm")], [[]], Console())
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_releases_what_was_being_made(
    points: Callable[..., Any], orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import standin_bodies

    def interrupted(makings: Any, context: Any) -> Any:
        yield from ()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(standin_bodies.BODIES, "solve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            carry_out(points(), tmp_path / "campaign")
    assert states(tmp_path / "campaign")["solve"] == (0, 4, 0, 0)
    assert carry_out(points(), tmp_path / "campaign").failures == []


def test_searches_that_do_not_fit_their_job_are_refused_at_planning_with_what_fits(
    config: dict[str, Any], change: Callable[..., Any], tmp_path: Path
) -> None:
    resources = {stage: {"minutes": 5} for stage in ("links", "blocks", "solve", "run")}
    base = change(config, cluster__resources=resources, solver__time_limit_s=120.0, dry_run=True)
    configs = [change(base, schedule__name="cross_ud", network__delay=[ratio, 0.0]) for ratio in (0.0, 1.0, 2.0)]
    overrides = [[f"network.delay=[{ratio},0]"] for ratio in (0, 1, 2)]
    with pytest.raises(
        UsageError,
        match=r"solver\.time_limit_s = 120\.0: 3 searches of one job may take 360 s, and the job has 300 s; "
        r"use solver\.points_per_job=2, or raise cluster\.resources\.solve\.minutes to 8",
    ):
        launch(configs, overrides, Console())
    few = [change(c, solver__points_per_job=2) for c in configs]
    assert launch(few, overrides, Console(quiet=True)) == 0
    by_hand = [change(c, schedule__name="1f1b") for c in configs]  # nothing is searched
    assert launch(by_hand, overrides, Console(quiet=True)) == 0


def test_a_folder_with_another_campaign_or_a_persons_own_files_is_not_trampled_on(
    points: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    carry_out(points(until="solve")[:2], tmp_path / "c")
    before = (tmp_path / "c" / "campaign.json").read_bytes()
    with pytest.raises(
        UsageError, match=r"campaign_dir = .*is the campaign of other points: 1f1b_delay-0-0 and 1 more"
    ):
        carry_out(points(until="solve")[2:], tmp_path / "c")
    assert (tmp_path / "c" / "campaign.json").read_bytes() == before
    (tmp_path / "c" / "tasks" / "my-notes.json").write_text("mine")
    carry_out(points(until="solve"), tmp_path / "c")  # the same, and more
    assert first_numbers(tmp_path / "c") == {"blocks": 1, "links": 1, "solve": 2}


def test_a_driver_on_another_machine_counts_while_its_jobs_say_something_and_is_not_said_to_be_ended(
    points: Callable[..., Any], orders: Path, tmp_path: Path
) -> None:
    carry_out(points(until="solve")[:2], tmp_path / "c")
    (tmp_path / "c" / "outcomes" / "solve").rename(tmp_path / "solve")  # as if they were yet to come
    shutil.rmtree(Path(load_campaign(tmp_path / "c").store) / "solve")
    for path in (tmp_path / "c" / "jobs").glob("*.json"):
        path.write_text(path.read_text().replace('"host": "', '"host": "node-of-an-allocation-'))
    assert not campaign_status(tmp_path / "c").finished
    with pytest.raises(CrosspipeError, match=r"what works on it is on node-of-an-allocation-.*: cancel it there"):
        cancel_campaign(tmp_path / "c")
    long_ago = time.time() - 3600
    for path in (tmp_path / "c" / "jobs").iterdir():
        os.utime(path, (long_ago, long_ago))
    assert campaign_status(tmp_path / "c").finished
    assert cancel_campaign(tmp_path / "c") == 0
