"""`crosspipe run` as a Hydra application: sweeps, quoting, errors in one line, the user's own configs, every config."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.config import PointConfig, typed
from crosspipe.campaign.configs import all_groups, config_dir, groups
from crosspipe.campaign.hydra_app import ConfigError, compose_and_launch
from crosspipe.campaign.points import make_points

Composed = tuple[list[dict[str, Any]], list[list[str]]]


@pytest.fixture
def compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Composed]:
    """Composes a command line in an empty folder and returns what the launcher was given."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Composed:
        heard: list[Composed] = []
        compose_and_launch(arguments, lambda configs, overrides: heard.append((configs, overrides)))
        return heard[0] if heard else ([], [])

    return run


def test_a_single_run_is_a_sweep_of_one_and_writes_nothing(compose: Callable[..., Composed], tmp_path: Path) -> None:
    configs, overrides = compose("schedule=1f1b", "name=mine")
    assert (len(configs), overrides) == (1, [["schedule=1f1b", "name=mine"]])
    assert typed(configs[0]).name == "mine"
    assert list(tmp_path.iterdir()) == []


def test_commas_sweep_lists_and_quotes_do_not(compose: Callable[..., Composed]) -> None:
    configs, _ = compose("schedule=1f1b,zbh1", "network.delay=[0,0],[1,0.25]", "name='a,b'")
    assert [(c["schedule"]["name"], c["network"]["delay"]) for c in configs] == [
        ("1f1b", [0, 0]), ("1f1b", [1, 0.25]), ("zbh1", [0, 0]), ("zbh1", [1, 0.25]),
    ]  # fmt: skip
    assert {c["name"] for c in configs} == {"a,b"}
    assert len(compose("-m", "run.seed=1,2,3")[0]) == 3


def test_the_demo_is_four_schedules_by_three_delays(
    compose: Callable[..., Composed],
) -> None:
    configs, overrides = compose("experiment=demo")
    points = make_points(configs, overrides)
    assert len(points) == 12
    assert {p.labels["schedule"] for p in points} == {"1f1b", "zbh1", "cross_ud_sub", "cross_ud"}
    assert {(p.labels["latency_ratio"], p.labels["bandwidth_ratio"]) for p in points} == {(0, 0), (1, 0.25), (0.25, 2)}
    for point in points:
        pipeline = point.config.pipeline
        assert (pipeline.sites, pipeline.stages, pipeline.microbatches, pipeline.memory_microbatches) == (2, 4, 8, 4)
        assert point.config.run.iterations >= 10
    assert [len(compose("experiment=demo", "schedule=zbh1")[0])] == [3]  # the experiment's sweep can be narrowed


def test_hydra_refusals_are_one_line_and_wrong_usage(compose: Callable[..., Composed]) -> None:
    for arguments, words in (
        (["schedule=zbh9"], "Could not find 'schedule/zbh9'; Available options in 'schedule':; 1f1b"),
        (["solver.wrokers=2"], "solver.wrokers: no such key; did you mean solver.workers?"),
        (["solver.time_limit_s=["], "override 'solver.time_limit_s=[': no viable alternative"),
        (["run.iterations=${nowhere}"], "nowhere"),
        (["schedule=1f1b,zbh1", "netwrok.delay=[0,0]"], "netwrok.delay: no such key; did you mean network.delay?"),
    ):
        with pytest.raises(ConfigError) as caught:
            compose(*arguments)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2


def test_a_users_own_conf_comes_first(compose: Callable[..., Composed], tmp_path: Path) -> None:
    mine = tmp_path / "conf" / "cluster"
    mine.mkdir(parents=True)
    packaged = (config_dir() / "cluster" / "local.yaml").read_text()
    (mine / "ours.yaml").write_text(packaged.replace("name: local", "name: ours"))
    (mine / "local.yaml").write_text(packaged.replace("workers: 1", "workers: 7"))
    assert compose("cluster=ours")[0][0]["cluster"]["name"] == "ours"
    (mine / "broken.yaml").write_text("name: [\n")
    with pytest.raises(ConfigError, match=r'broken\.yaml", line 2'):
        compose("cluster=broken")
    (mine / "broken.yaml").unlink()
    assert {"ours", "local", "slurm"} <= set(all_groups()["cluster"])  # what `crosspipe run --help` lists
    assert compose()[0][0]["cluster"]["workers"] == 7


@pytest.mark.parametrize("group", ["model", "cluster", "network", "schedule", "solver", "run"])
def test_every_packaged_config_is_valid_and_says_what_it_is(compose: Callable[..., Composed], group: str) -> None:
    choices = groups(config_dir())[group]
    configs, _ = compose(f"{group}={','.join(choices)}")
    assert len(configs) == len(choices)
    for config in configs:
        assert isinstance(typed(config), PointConfig)
    assert all(len(about) > 10 for about in choices.values())


def test_every_schedule_has_its_config() -> None:
    from crosspipe.solver import SCHEDULES

    assert set(SCHEDULES) <= set(groups(config_dir())["schedule"])


def test_every_key_is_commented_with_its_meaning() -> None:
    """A line `key: value` of the main config and of one config a group carries a comment (a section's may be above)."""
    silent = []
    for path in [
        config_dir() / "config.yaml",
        config_dir() / "solver" / "default.yaml",
        config_dir() / "cluster" / "local.yaml",
    ]:
        for line in path.read_text().split("hydra:")[0].splitlines():
            if re.match(r"\s*\w+: \S", line) and " # " not in line and "name:" not in line and "minutes" not in line:
                silent.append(f"{path.name}: {line}")
    assert silent == []
