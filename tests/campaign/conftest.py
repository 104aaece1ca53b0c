"""A small campaign: four points (two schedules, two delays) in a temporary folder, with stand-in stage bodies."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.points import Point, make_points

STANDIN = Path(__file__).parent / "standin"

CONFIG: dict[str, Any] = {
    "name": "small",
    "store": "store",
    "model": {"name": "tiny", "vocabulary": 256, "hidden": 64, "intermediate": 176, "heads": 4, "kv_heads": 2,
              "layers": 4, "sequence": 32},
    "cluster": {"name": "here", "executor": "debug",
                "resources": {stage: {"minutes": 5} for stage in ("links", "blocks", "solve", "run")}},
    "network": {"kind": "injected", "delay": [1.0, 0.25]},
    "schedule": {"name": "1f1b"},
    "solver": {"time_limit_s": 5.0, "points_per_job": 3},
    "pipeline": {"sites": 2, "stages": 4, "microbatches": 8, "memory_microbatches": 4.0},
    "profile": {"max_age_days": 30.0, "links": {"time_budget": 1}, "blocks": {"budget_s": 1}},
    "run": {"pace": 2.0, "points_per_job": 4},
}  # fmt: skip


def changed(base: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A copy with `section__key=value` set."""
    config = copy.deepcopy(base)
    for name, value in values.items():
        *sections, key = name.split("__")
        part = config
        for section in sections:
            part = part[section]
        part[key] = value
    return config


def sweep(base: dict[str, Any]) -> tuple[Point, ...]:
    configs, overrides = [], []
    for schedule in ("1f1b", "zbh1"):
        for delay in ([0.0, 0.0], [1.0, 0.25]):
            configs.append(changed(base, schedule__name=schedule, network__delay=delay))
            overrides.append([f"schedule={schedule}", f"network.delay=[{delay[0]:g},{delay[1]:g}]"])
    return make_points(configs, overrides)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """The resolved configuration of one point; the store is in the test's own folder."""
    return changed(CONFIG, store=str(tmp_path / "store"))


@pytest.fixture
def change() -> Callable[..., dict[str, Any]]:
    """`change(config, section__key=value)`."""
    return changed


@pytest.fixture
def points(config: dict[str, Any]) -> Callable[..., tuple[Point, ...]]:
    """`points(section__key=value)`: the four points, changed."""
    return lambda **values: sweep(changed(config, **values))


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder through which a test talks to the stand-in bodies, here and in every process started."""
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "trace").touch()
    monkeypatch.setenv("CROSSPIPE_STANDIN", str(folder))
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(STANDIN), str(root), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.syspath_prepend(str(STANDIN))
    return folder
