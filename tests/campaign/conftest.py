"""A small campaign: four points (two schedules, two delays) in a temporary folder, with stand-in stage bodies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_configs import CONFIG, changed

from crosspipe.campaign.points import Point, make_points

STANDIN = Path(__file__).parent / "standin"


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
