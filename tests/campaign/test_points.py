"""Names and labels of points, and what a wrong configuration is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.config import check_possible, typed
from crosspipe.campaign.points import make_points
from crosspipe.errors import FieldError, UsageError


def test_names_are_made_of_what_varies(points: Callable[..., Any]) -> None:
    assert [point.name for point in points()] == [
        "1f1b_delay-0-0",
        "1f1b_delay-1-0.25",
        "zbh1_delay-0-0",
        "zbh1_delay-1-0.25",
    ]


def test_labels_hold_ratios_and_every_other_swept_key(config: dict[str, Any], change: Callable[..., Any]) -> None:
    configs = [change(config, pipeline__microbatches=8), change(config, pipeline__microbatches=16)]
    found = make_points(configs, [["pipeline.microbatches=8"], ["pipeline.microbatches=16"]])
    assert found[1].labels == {
        "schedule": "1f1b", "model": "tiny", "network": "injected", "latency_ratio": 1.0, "bandwidth_ratio": 0.25,
        "pace": 2.0, "pipeline.microbatches": 16,
    }  # fmt: skip
    absolute = make_points([change(config, network={"kind": "injected", "latency_ms": 3.0})], [[]])
    assert absolute[0].labels["latency_ratio"] is None


def test_what_is_in_an_override_does_not_reach_a_path(config: dict[str, Any], change: Callable[..., Any]) -> None:
    configs = [change(config, run__data=path) for path in ("/a/../b,c", "{x: 1}")]
    names = [p.name for p in make_points(configs, [["run.data='/a/../b,c'"], ["run.data={x: 1}"]])]
    assert names == ["data-a-..-b-c", "data-x-1"]
    assert all("/" not in name for name in names)


def test_names_never_collide_and_equal_points_merge(config: dict[str, Any], change: Callable[..., Any]) -> None:
    configs = [change(config, run__data=path) for path in ("a/b", "a,b", "a,b")]
    found = make_points(configs, [["run.data=a/b"], ["run.data='a,b'"], ["run.data='a,b'"]])
    assert len(found) == 2
    assert found[0].name == "data-a-b"
    assert found[1].name.startswith("data-a-b_")


@pytest.mark.parametrize(
    ("change_by", "words"),
    [
        ({"pipeline__sites": 3}, "pipeline.sites = 3: 4 stages cannot be split evenly among 3 sites"),
        ({"pipeline__stages": "four"}, "pipeline.stages = 'four': expected `int`, got `str`"),
        ({"cluster__executor": "pbs"}, "'pbs': no such choice; use one of allocation, debug, local, slurm"),
        ({"run__pace": 0.0}, "run.pace = 0.0: is not a finite number > 0; use more than 0, or null"),
        ({"solver__wrokers": 2}, "solver.wrokers = 2: no such key; did you mean workers?"),
        ({"until": "reprot"}, "until = 'reprot': no such choice; use one of profile, run, solve"),
        (
            {"network__origin": "tin can"},
            "network.origin = 'tin can': no such choice; use one of real link, shaped TCP",
        ),
        ({"solver__time_limit_s": -1}, "solver.time_limit_s = -1: expected `float` > 0"),
        ({"solver__workers": 0}, "solver.workers = 0: expected `int` >= 1"),
        ({"run__seed": -1}, "run.seed = -1: is below 0; use 0 or more"),
        ({"run__transport": "pigeon"}, "run.transport = 'pigeon': no such transport in this version; use gloo"),
        (
            {"cluster__resources__solve__partitoin": "dc0"},
            "cluster.resources.*.partitoin = 'dc0': no such key; did you mean partition?",
        ),
        (
            {"cluster__resources__run__zzz": 1},
            "cluster.resources.*.zzz = 1: no such key; remove it, or use one of minutes,",
        ),
        ({"store": " "}, "store = ' ': is empty; give the campaign's store"),
        ({"model__heads": 3}, "model.kv_heads = 2: 3 heads cannot share 2 key/value heads evenly"),
        ({"profile__links": {"time_budget": 0}}, "profile.links.time_budget = 0: is not a finite number > 0"),
        ({"profile__links": {"fewest": 5}}, "profile.links.fewest = 5: too few for a 95 % interval"),
        ({"profile__blocks": {"repetitions": 0}}, "profile.blocks.repetitions = 0: too few for a 95 % interval"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(
    config: dict[str, Any], change: Callable[..., Any], change_by: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_points([change(config, **change_by)], [[]])
    assert words in str(caught.value)


def test_what_cannot_be_run_is_refused_before_anything_is_planned(
    config: dict[str, Any], change: Callable[..., Any], tmp_path: Path
) -> None:
    def refused(**change_by: Any) -> str:
        with pytest.raises(UsageError) as caught:
            check_possible(typed(change(config, **change_by)))
        return str(caught.value)

    words = refused(run__data=str(tmp_path / "none"))
    assert words.endswith("none': no such file or folder; give text to train on, or null")
    table = tmp_path / "links.csv"
    table.write_text("a,b,latency_ms,bandwidth_gbit_per_s\n0,0,1,10\n")
    words = refused(network={"kind": "table", "file": str(table)})
    assert words.endswith("links.csv': has no row for site 0 to site 1; add it to the table")
    with pytest.raises(FieldError, match=r"run\.bandwidth_trace = '/nope\.csv': cannot be read"):
        check_possible(typed(change(config, run__bandwidth_trace="/nope.csv")))
    experts = {"count": 8, "active": 2, "intermediate": 64}
    assert "is known by cost only" in refused(model__experts=experts)
    check_possible(typed(change(config, run__data=str(tmp_path))))
