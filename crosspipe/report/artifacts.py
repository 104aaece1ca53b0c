"""What a campaign left in the store, point by point: read here, judged elsewhere.

A point ends with the last stage it names; what is missing, failed or unreadable becomes a status with a reason, so that
no point is ever dropped. Timelines are large and only the pictures need them: they are read on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from crosspipe.errors import ArtifactError, CrosspipeError, FieldError
from crosspipe.problem import BlockCosts, LinkTable, Problem
from crosspipe.schedule import Schedule, Timeline
from crosspipe.store.campaign_file import CAMPAIGN_FILE, CampaignFile, CampaignPoint, Outcome, outcome_path
from crosspipe.store.files import load
from crosspipe.store.records import RunRecord
from crosspipe.store.store import DONE, Store
from crosspipe.store.timelines import read_timelines

T = TypeVar("T", bound=msgspec.Struct)

DOES_NOT_FIT = "activation_limit_bytes["  # named by every Infeasible of the solver, and by nothing else that solves
STAGE_WORDS = {
    "links": "the link profile",
    "blocks": "the block profile",
    "solve": "the schedule",
    "run": "the run",
}


@dataclass(frozen=True)
class PointArtifacts:
    """One point of the campaign with whatever of its artifacts exists; `status` as in the data dictionary.

    `log` is the path of the log that tells why it failed, relative to the campaign directory; `unreadable` and `stale`
    say in words which files could not be read and which inputs changed since they were used.
    """

    point: CampaignPoint
    status: str
    reason: str
    log: str | None
    links: LinkTable | None
    blocks: BlockCosts | None
    problem: Problem | None
    schedule: Schedule | None
    run: RunRecord | None
    run_dir: Path | None
    unreadable: tuple[str, ...]
    stale: tuple[str, ...]

    def timelines(self) -> list[Timeline]:
        """The measured Timelines, one per measured iteration; empty where the run left none."""
        if self.run_dir is None or not (self.run_dir / "timelines.parquet").exists():
            return []
        return read_timelines(self.run_dir / "timelines.parquet")


def load_campaign(campaign_dir: Path) -> CampaignFile:
    """`campaign.json` of a campaign directory; ArtifactError if there is none."""
    if not (campaign_dir / CAMPAIGN_FILE).exists():
        raise ArtifactError(
            f"{campaign_dir}: no {CAMPAIGN_FILE} in it, so this is no campaign directory; "
            "give the directory that `crosspipe run` printed"
        )
    return load(campaign_dir / CAMPAIGN_FILE, CampaignFile)


class ArtifactReader:
    """Reads a campaign's artifacts, each file once: points share profiles, and often the schedule too."""

    def __init__(self, campaign_dir: Path, store: Store, campaign: CampaignFile) -> None:
        self.campaign_dir, self.store, self.campaign = campaign_dir, store, campaign
        self._read: dict[Path, msgspec.Struct | CrosspipeError] = {}
        self._stale: dict[str, tuple[str, ...]] = {}

    def read(self, point: CampaignPoint) -> PointArtifacts:
        """Everything the store has of `point`."""
        unreadable: list[str] = []
        finished = [stage for stage, key in point.keys.items() if self._done(stage, key)]

        def get(stage: str, name: str, cls: type[T]) -> T | None:
            if stage not in finished:
                return None
            found = self._load(self.store.directory(f"{stage}/{point.keys[stage]}") / name, cls)
            if isinstance(found, cls):
                return found
            unreadable.append(str(found))
            return None

        links = get("links", "links.json", LinkTable)
        blocks = get("blocks", "blocks.json", BlockCosts)
        problem, schedule = get("solve", "problem.json", Problem), get("solve", "schedule.json", Schedule)
        run = get("run", "run.json", RunRecord)
        stale = tuple(text for stage in finished for text in self._stale_inputs(stage, point.keys[stage], unreadable))
        status, reason, log = self._status(point, finished, unreadable)
        return PointArtifacts(
            point=point,
            status=status,
            reason=reason,
            log=log,
            links=links,
            blocks=blocks,
            problem=problem,
            schedule=schedule,
            run=run,
            run_dir=None if run is None else self.store.directory(f"run/{point.keys['run']}"),
            unreadable=tuple(dict.fromkeys(unreadable)),
            stale=stale,
        )

    def _done(self, stage: str, key: str) -> bool:
        return (self.store.directory(f"{stage}/{key}") / DONE).exists()

    def _load(self, path: Path, cls: type[T]) -> msgspec.Struct | CrosspipeError:
        if path not in self._read:
            try:
                self._read[path] = load(path, cls)
            except (ArtifactError, FieldError) as error:
                self._read[path] = error
        return self._read[path]

    def _stale_inputs(self, stage: str, key: str, unreadable: list[str]) -> tuple[str, ...]:
        reference = f"{stage}/{key}"
        if reference not in self._stale:
            try:
                self._stale[reference] = tuple(
                    f"{STAGE_WORDS.get(stage, stage)} ({reference[:20]}) read another {name} than the store now holds"
                    for name in self.store.stale(reference)
                )
            except (ArtifactError, FieldError) as error:
                unreadable.append(str(error))
                return ()
        return self._stale[reference]

    def _status(self, point: CampaignPoint, finished: list[str], unreadable: list[str]) -> tuple[str, str, str | None]:
        if unreadable:
            return "failed", unreadable[0], None
        missing = {stage: key for stage, key in point.keys.items() if stage not in finished}
        *_, last = point.keys
        if last not in missing:
            return ("cached" if f"{last}/{point.keys[last]}" in self.campaign.cached else "done"), "", None
        for stage, key in missing.items():
            path = outcome_path(self.campaign_dir, stage, key)
            if not path.exists():
                continue
            outcome = self._load(path, Outcome)
            if not isinstance(outcome, Outcome):
                return "failed", str(outcome), None
            if does_not_fit(stage, outcome.status, outcome.reason):
                return "infeasible", outcome.reason, outcome.log
            if outcome.status != "done":
                return outcome.status, f"{STAGE_WORDS.get(stage, stage)} {_ended(outcome)}", outcome.log
        stage = next(iter(missing))
        return "waiting", f"{STAGE_WORDS.get(stage, stage)} is not finished", None


def does_not_fit(stage: str, status: str, reason: str) -> bool:
    """Whether an artifact is lacking because no such schedule fits the memory: a result, not a fault."""
    return stage == "solve" and status == "failed" and DOES_NOT_FIT in reason


def _ended(outcome: Outcome) -> str:
    verb = "failed" if outcome.status == "failed" else "could not start"
    return f"{verb}: {outcome.reason}" if outcome.reason else f"{verb}, and left no reason"
