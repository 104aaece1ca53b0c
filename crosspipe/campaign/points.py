"""Points: what tells one configuration of a sweep from the others, as names and labels.

A name is made of what varies, never of the place in the sweep, so that a sweep grown by a value keeps its names; only
letters, digits and `.+-_` reach a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from crosspipe.campaign.config import PointConfig, typed
from crosspipe.store.campaign_file import Label


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point: its unique `name`, its labels for tables, the typed configuration and the plain one behind it."""

    name: str
    labels: dict[str, Label]
    config: PointConfig
    plain: dict[str, Any]


def make_points(configs: Sequence[dict[str, Any]], overrides: Sequence[Sequence[str]]) -> tuple[Point, ...]:
    """A point per resolved configuration; `overrides[i]` are the `key=value` of point i. Same configurations merge.

    Raises UsageError for the first configuration that does not fit, before anything is planned.
    """
    pairs = [dict(_pair(text) for text in texts) for texts in overrides]
    keys = dict.fromkeys(key for pair in pairs for key in pair)
    varying = [key for key in keys if len({pair.get(key) for pair in pairs}) > 1]
    points: dict[str, Point] = {}
    seen: set[bytes] = set()
    for plain, pair in zip(configs, pairs, strict=True):
        config, identity = typed(plain), msgspec.json.encode(plain, order="sorted")
        if identity in seen:
            continue
        seen.add(identity)
        swept = {key: pair[key] for key in varying if key in pair}
        name = "_".join(filter(None, (_part(key, value) for key, value in swept.items()))) or config.schedule.name
        if name in points or len(name) > 120:
            name = f"{name[:100]}_{hashlib.sha256(identity).hexdigest()[:8]}"
        points[name] = Point(name=name, labels=_labels(config, swept), config=config, plain=plain)
    return tuple(points.values())


def _labels(config: PointConfig, swept: dict[str, str]) -> dict[str, Label]:
    ratios = config.network.ratios()
    labels: dict[str, Label] = {
        "schedule": config.schedule.name,
        "model": config.model.name + ("" if config.costs.measured or config.until != "run" else " (stand-in)"),
        "network": config.network.name or config.network.kind,
        "latency_ratio": None if ratios is None else ratios[0],
        "bandwidth_ratio": None if ratios is None else ratios[1],
        "pace": config.run.pace,
    }
    known = {"schedule", "model", "network", "network.delay", "network.latency_ratio", "network.bandwidth_ratio"}
    return labels | {key: _plain(value) for key, value in swept.items() if key not in known | {"run.pace"}}


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+~").partition("@")[0], value


def _part(key: str, value: str) -> str:
    """`schedule=1f1b` is `1f1b`, `network.delay=[1,0.25]` is `delay-1-0.25`."""
    text = re.sub(r"[^\w.+-]+", "-", value).strip("-")
    return text if "." not in key else f"{key.rpartition('.')[2]}-{text}"


def _plain(value: str) -> Label:
    try:
        found = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    return found if isinstance(found, str | int | float | bool) else value
