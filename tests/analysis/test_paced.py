"""Points whose costs are not measured, run: paced, by a stand-in; and what of their work is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from crosspipe.campaign.graph import build_graph
from crosspipe.campaign.hydra_app import compose_and_launch
from crosspipe.campaign.points import make_points
from crosspipe.cli import main
from crosspipe.store import Store

M70 = ("costs=m70_published", "model=m70", "pipeline.stages=8", "pipeline.microbatches=16")


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def planned(*arguments: str):
        heard: list[Any] = []
        compose_and_launch(arguments, lambda configs, overrides: heard.extend(make_points(configs, overrides)))
        return build_graph(heard, Store(tmp_path / "store"))

    return planned


def test_a_stand_in_has_a_narrow_layer_for_every_stage_and_chunk(graph) -> None:
    for schedule, split in (("zbh1", [[1]] * 8), ("zbv", [[1, 1]] * 8)):
        (run,) = graph(*M70, "run=paced", "run.pace=1", f"schedule={schedule}", "network.delay=[0,2]").stage("run")
        model = run.request.config["model"]
        assert (run.request.config["layers"], model["layers"]) == (split, sum(map(sum, split)))
        assert (model["hidden"], model["sequence"]) == (64, 32)
        assert run.site_of_rank == (0, 0, 0, 0, 1, 1, 1, 1)


def test_at_pace_1_the_schedule_is_the_one_that_is_simulated(graph) -> None:
    point = (*M70, "schedule=zbh1", "network.delay=[0,2]")
    (simulated,) = graph(*point, "run=real", "until=solve").stage("solve")
    (same,) = graph(*point, "run=paced", "run.pace=1").stage("solve")
    (other,) = graph(*point, "run=paced", "run.pace=0.5").stage("solve")
    assert simulated.request.key == same.request.key != other.request.key


def test_runs_that_differ_by_their_schedule_share_one_start_of_the_ranks(graph) -> None:
    runs = graph(*M70, "run=paced", "schedule=1f1b,zbh1", "network.delay=[0,0],[0,2]").stage("run")
    assert len(runs) == 4
    assert len({node.group for node in runs}) == 1


def test_on_one_site_the_link_between_sites_makes_no_difference(graph) -> None:
    links = ("network=cross_region", "network.latency_ms=4,128", "network.bandwidth_gbit_per_s=1,8")
    found = graph(*M70, "run=real", "until=solve", "schedule=zbh1", *links, "pipeline.sites=1,2")
    assert len(found.stage("solve")) == 1 + 4
    assert len(found.keys) == 8


def test_without_pacing_nothing_runs_at_given_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *M70, "schedule=zbh1", "run=real"]) == 2
    said = capsys.readouterr().err
    assert "only where they are paced; use run=paced (run.pace=1: just as long), or until=solve" in said


@pytest.mark.serial
def test_a_paced_run_lasts_as_its_costs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages on two sites, two microbatches, F = D = W = 20 ms (costs=equal at pace 2), latency 20 ms, 1F1B,
    receives posted when they are used.

    Stage 1 runs F0 from 40 and B0 until 100. Only then does it post the receive of F1, which arrives at 120 and not at
    60; F1 and B1 end at 180, B1's message arrives at 200, and stage 0 ends at 240. Posted early, all ends at 220.
    """
    monkeypatch.chdir(tmp_path)
    shape = ("pipeline.stages=2", "pipeline.microbatches=2", "pipeline.memory_microbatches=2", "network.delay=[1,0]")
    how = ("run=paced", "run.pace=2", "run.warmup=1", "run.iterations=3", "run.post_ahead_ms=null")
    where = ("cluster=local", "store=store", "campaign_dir=campaign")
    assert main(["run", "costs=equal", "model=m8", "schedule=1f1b", *shape, *how, *where]) == 0
    (point,) = pl.read_csv(tmp_path / "campaign" / "report" / "results.csv").to_dicts()
    assert point["predicted_makespan_ms"] == 220
    assert point["measured_makespan_ms"] == pytest.approx(240, rel=0.03)
    assert point["model"] == "m8 (stand-in)"
    assert point["gradient_relative_error"] < 1e-5  # and what it trains is right
    assert not (tmp_path / "store" / "links").exists()
