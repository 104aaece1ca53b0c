"""The graph: shared work once, keys that change with what determines a result and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.graph import build_graph
from crosspipe.campaign.points import make_points
from crosspipe.campaign.tasks import pack
from crosspipe.errors import UsageError
from crosspipe.store import Store, my_claim

MIB = 2**20
ALL = ("links", "blocks", "solve", "run")


def keys(config: dict[str, Any]) -> dict[str, str]:
    points = make_points([config], [[]])
    return build_graph(points, Store(config["store"])).keys[points[0].name]


def test_what_points_share_is_made_once(points: Callable[..., Any], tmp_path: Path) -> None:
    graph = build_graph(points(), Store(tmp_path / "store"))
    assert [len(graph.stage(stage)) for stage in ("links", "blocks", "solve", "run")] == [1, 1, 4, 4]
    assert len(graph.stage("links")[0].points) == 4
    for node in graph.nodes.values():  # inputs come first
        place = list(graph.nodes).index(node.reference)
        assert all(list(graph.nodes).index(source) < place for source in node.request.inputs.values())
    assert not (tmp_path / "store").exists()  # planning writes nothing


@pytest.mark.parametrize(
    ("change_by", "same"),
    [
        ({}, ALL),
        ({"name": "other", "strict": True}, ALL),
        ({"run__points_per_job": 1, "run__timeout_s": 7.0}, ALL),
        ({"solver__time_limit_s": 99.0}, ALL),  # 1f1b searches nothing
        ({"network": {"kind": "injected", "latency_ratio": 1, "bandwidth_ratio": 0.25}}, ALL),
        ({"run__iterations": 20}, ("links", "blocks", "solve")),
        ({"network__delay": [1.0, 0.5]}, ("links", "blocks")),
        ({"run__pace": 3.0}, ("links", "blocks")),
        ({"pipeline__microbatches": 16}, ("links", "blocks")),
        ({"profile__blocks": {"budget_s": 2}}, ("links",)),
        ({"model__hidden": 128}, ("links",)),
        ({"pipeline__sites": 1}, ("blocks",)),
        ({"cluster__name": "there"}, ()),
    ],
)  # fmt: skip
def test_a_key_changes_with_what_determines_the_result(
    config: dict[str, Any], change: Callable[..., Any], change_by: dict[str, Any], same: tuple[str, ...]
) -> None:
    before, after = keys(config), keys(change(config, **change_by))
    assert tuple(stage for stage in before if before[stage] == after[stage]) == same


def test_a_search_is_determined_by_its_limits(config: dict[str, Any], change: Callable[..., Any]) -> None:
    greedy = change(config, schedule__name="cross_ud_sub")
    for changed in ({"solver__seed": 1}, {"schedule__pieces": 4}, {"solver__time_limit_s": 6.0}):
        assert keys(greedy)["solve"] != keys(change(greedy, **changed))["solve"]


def test_the_road_ends_where_it_is_told(config: dict[str, Any], change: Callable[..., Any]) -> None:
    assert list(keys(change(config, until="profile"))) == ["links", "blocks"]
    assert list(keys(change(config, until="solve"))) == ["links", "blocks", "solve"]
    assert keys(change(config, until="solve"))["solve"] == keys(config)["solve"]


def test_refresh_measures_anew_and_everything_after_follows(config: dict[str, Any], change: Callable[..., Any]) -> None:
    points = make_points([config], [[]])
    store = Store(config["store"])
    for node in build_graph(points, store).stage("links"):
        claim = my_claim()
        store.claim(node.request, claim)
        with store.making(node.request, claim):
            pass
    again, fresh = keys(config), keys(change(config, profile__refresh=True))
    assert again["links"] == node.request.key
    assert fresh["links"] != again["links"]
    assert fresh["solve"] != again["solve"]


def test_a_campaign_goes_on_with_its_own_measurements(config: dict[str, Any], change: Callable[..., Any]) -> None:
    store = Store(config["store"])
    first = build_graph(make_points([config], [[]]), store)
    measurements = [first.stage("links")[0].request, first.stage("blocks")[0].request]
    for request in measurements:
        claim = my_claim()
        store.claim(request, claim)
        with store.making(request, claim):
            pass
    points = make_points([change(config, profile__refresh=True)], [[]])
    assert build_graph(points, store).keys != first.keys
    assert build_graph(points, store, measurements).keys == first.keys


@pytest.mark.parametrize(
    ("sequence", "largest"), [(32, 4 * MIB), (16384, 4 * MIB), (32768, 16 * MIB), (131072, 64 * MIB)]
)
def test_links_are_measured_up_to_the_models_message(
    config: dict[str, Any], change: Callable[..., Any], sequence: int, largest: int
) -> None:
    """64 numbers of 4 bytes a token: 16384 tokens are 4 MiB."""
    point = change(config, model__sequence=sequence, profile__links={"largest": 4 * MIB})
    (node,) = build_graph(make_points([point], [[]]), Store(config["store"])).stage("links")
    assert node.request.config["largest"] == largest


def test_links_are_measured_over_the_transport_of_the_run(config: dict[str, Any], change: Callable[..., Any]) -> None:
    def transports(point: dict[str, Any]) -> object:
        (node,) = build_graph(make_points([point], [[]]), Store(config["store"])).stage("links")
        return node.request.config.get("transports")

    assert transports(change(config, run__transport="nccl", run__pace=None)) == ["mpi", "nccl"]
    given = change(config, run__transport="nccl", run__pace=None, profile__links={"transports": ["nccl"]})
    assert transports(given) == ["nccl"]
    assert transports(config) is None  # the profiler's own: mpi and gloo


def test_what_a_link_is_belongs_to_the_run_and_not_to_the_solve(
    config: dict[str, Any], change: Callable[..., Any]
) -> None:
    measured = change(config, network={"kind": "measured"})
    shaped = change(config, network={"kind": "measured", "origin": "shaped TCP"})
    one, other = (build_graph(make_points([p], [[]]), Store(config["store"])) for p in (measured, shaped))
    assert [one.stage("solve")[0].request.key] == [other.stage("solve")[0].request.key]
    assert other.stage("run")[0].request.config["origin"] == "shaped TCP"
    assert "origin" not in one.stage("run")[0].request.config


def test_an_unknown_schedule_lists_the_known_ones(config: dict[str, Any], change: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"schedule = 'zbh9': no such schedule; use one of .*1f1b.*zbh1"):
        keys(change(config, schedule__name="zbh9"))


def test_layers_that_do_not_fit_are_refused_with_the_numbers(
    config: dict[str, Any], change: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError, match=r"pipeline\.layers = .*places 5 layers, the model has 4"):
        keys(change(config, pipeline__layers=[2, 1, 1, 1]))
    with pytest.raises(UsageError, match=r"model\.layers = 3: 3 decoder layers do not fit 4 stages"):
        keys(change(config, model__layers=3))


def test_packing_bounds_the_jobs_and_orders_them(points: Callable[..., Any], tmp_path: Path) -> None:
    graph = build_graph(points(), Store(tmp_path / "store"))
    tasks = pack(graph, list(graph.nodes), store="s", campaign="c")
    assert [(task.id, len(task.references), task.after) for task in tasks] == [
        ("links-000", 1, ()),
        ("blocks-000", 1, ()),
        ("solve-000", 3, ("links-000", "blocks-000")),
        ("solve-001", 1, ("links-000", "blocks-000")),
        ("run-000", 4, ("blocks-000", "solve-000", "solve-001")),
    ]
    runs = [node.reference for node in graph.stage("run")]
    assert [task.after for task in pack(graph, runs, store="s", campaign="c")] == [()]  # inputs are there already
