"""What a campaign directory says about itself: `campaign.json` (points to artifact keys) and one outcome per artifact.

The plan is written once, before anything runs; outcomes are written by whoever ran (or skipped) a stage, one small file
each, so that no two writers meet. Status and the report read both without Slurm, torch or Hydra at hand. Results are
not here: they stay in the store, which the keys point into.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

CAMPAIGN_FILE = "campaign.json"

Label = str | int | float | bool | None
Ending = Literal["done", "failed", "blocked"]


class CampaignPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a sweep: what tells it from its neighbours, its resolved config, and the artifact of each stage.

    `name` is unique in the campaign. `labels` holds `schedule`, `model`, `network`, `latency_ratio` (T_lat/T_F),
    `bandwidth_ratio` (T_bw/T_F; both None where the network is given in ms or measured), `pace`, and every swept
    override besides. `config` is the resolved config as plain data. `keys` maps a stage (`links`, `blocks`, `solve`,
    `run`) to its key in the store, in the order of the road; a stage that the point does not reach (`until=solve`) is
    absent.
    """

    name: str
    labels: dict[str, Label]
    config: dict[str, Any] = {}
    keys: dict[str, str]


class CampaignFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="campaign"):
    """The plan of a campaign. `store` is where its artifacts lie; `created_at_s` seconds since the epoch (UTC).

    `cached` lists, as `stage/key`, what the store already had when the campaign was (last) planned.
    """

    schema: int = 1
    name: str
    store: str
    created_at_s: float
    points: tuple[CampaignPoint, ...]
    cached: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="outcome"):
    """How one artifact's making ended. `reason` is one sentence (which rank, which missing input), empty when done.

    `log` is the path of the log that tells more, relative to the campaign directory; `job` the scheduler's job id.
    """

    schema: int = 1
    stage: str
    key: str
    status: Ending
    reason: str = ""
    log: str | None = None
    job: str | None = None
    ended_at_s: float | None = None


def outcome_path(campaign_dir: Path, stage: str, key: str) -> Path:
    """Where the outcome of `stage/key` is written: `<campaign>/outcomes/<stage>/<key>.json`."""
    return campaign_dir / "outcomes" / stage / f"{key}.json"
