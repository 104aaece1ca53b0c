"""The configuration of a small point, resolved as Hydra leaves it, and a way to change it."""

from __future__ import annotations

import copy
from typing import Any

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
            part = part.setdefault(section, {})
        part[key] = value
    return config
