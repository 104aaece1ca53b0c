"""Every experiment, in every form it has, can be planned: each value of each sweep, not each combination of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from crosspipe.campaign.config import check_possible, typed
from crosspipe.campaign.configs import config_dir
from crosspipe.campaign.graph import STAGES, build_graph
from crosspipe.campaign.hydra_app import plain, register
from crosspipe.campaign.points import make_points
from crosspipe.store import Store

EXPERIMENTS = config_dir() / "experiment"
FORMS = config_dir() / "scale" / "of"
NAMES = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))
OF_EXPERIMENT = [(name, None) for name in NAMES]
OF_FORM = [tuple(path.stem.rsplit("_", 1)) for path in sorted(FORMS.glob("*.yaml"))]


@pytest.fixture(autouse=True)
def configs() -> Iterator[None]:
    register()
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        yield


def compose(*overrides: str) -> dict[str, Any]:
    return plain(hydra.compose("config", list(overrides)))


def sweeps(file: Path) -> dict[str, list[str]]:
    """The values of each key that an experiment, or a form of one, sweeps."""
    config, parser, found = yaml.safe_load(file.read_text()), OverridesParser.create(), {}
    for key, value in config.get("hydra", {}).get("sweeper", {}).get("params", {}).items():
        override = parser.parse_override(f"{key}={value}")
        found[key] = list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(value)]
    return found


@pytest.mark.parametrize(("experiment", "scale"), OF_EXPERIMENT + OF_FORM)
def test_every_value_of_every_sweep_can_be_planned(experiment: str, scale: str | None, tmp_path: Path) -> None:
    values, form = sweeps(EXPERIMENTS / f"{experiment}.yaml"), [f"experiment={experiment}"]
    if scale is not None:  # what it does not sweep itself has been planned without it
        own = sweeps(FORMS / f"{experiment}_{scale}.yaml")
        values, form = {key: row[:1] for key, row in values.items()} | own, [*form, f"scale={scale}"]
    longest = max(map(len, values.values()), default=1)
    overrides = [[f"{key}={row[i % len(row)]}" for key, row in values.items()] for i in range(longest)]
    points = make_points([compose(*form, *chosen) for chosen in overrides], overrides)
    assert len(points) == longest
    for point in points:
        check_possible(point.config)
    graph = build_graph(points, Store(tmp_path / "store"))
    for point in points:  # each has a road, and it ends where the configuration says
        *_, last = graph.keys[point.name]
        assert last == {"profile": "blocks"}.get(point.config.until, point.config.until)
    assert {node.request.stage for node in graph.nodes.values()} <= set(STAGES)
    assert list(tmp_path.iterdir()) == []


def test_the_laptop_form_paces_the_published_times() -> None:
    assert sweeps(FORMS / "table5_laptop.yaml")["schedule"] == ["zbh1", "cross_ud"]
    point = typed(compose("experiment=table5", "scale=laptop", "+case=batch16", "network.delay=[2,2]"))
    assert (point.until, point.run.pace, point.costs.forward_ms) == ("run", 1.0, 38)
    simulated = typed(compose("experiment=fig14", "scale=laptop", "+case=stages4"))
    assert (simulated.until, simulated.solver.time_limit_s) == ("solve", 60)  # the paper simulates it, so do we


def test_the_full_form_measures_and_paces_nothing() -> None:
    for case, model, stages in (("m8_measured", "m8", 4), ("m70_measured", "m70", 8)):
        point = typed(compose("experiment=fig11", "scale=full", "cluster=gh200", f"+case={case}"))
        assert (point.model.name, point.pipeline.stages) == (model, stages)
        assert (point.until, point.run.pace, point.run.transport) == ("run", None, "nccl")
        assert (point.costs.source, point.cluster.executor) == ("measured", "slurm")


def test_a_user_s_choice_wins_over_the_form_s() -> None:
    form = ("experiment=table6", "scale=laptop", "+case=batch16")
    assert typed(compose(*form)).run.pace == 0.5
    point = typed(compose(*form, "schedule=zbv", "run.pace=2", "until=solve"))
    assert (point.schedule.name, point.run.pace, point.until) == ("zbv", 2, "solve")
