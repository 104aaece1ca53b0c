"""What the store keeps, for which campaigns, and how to let go of the rest (`crosspipe store ls` and `gc`).

Campaigns enter themselves in `<root>/campaigns.d/`; an artifact is used while a campaign directory that still exists
names it. Only what none uses, and nobody is making, is removed.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.store.campaign_file import CAMPAIGN_FILE, CampaignFile
from crosspipe.store.claims import Lives, holder_lives
from crosspipe.store.files import load, save
from crosspipe.store.store import REQUEST, Store

_REGISTER = "campaigns.d"
GRACE_S = 3600.0  # an unfinished artifact younger than this may be somebody's plan


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="campaign_entry"):
    schema: int = 1
    directory: str


@dataclass(frozen=True)
class Kept:
    """One artifact: `state` is done, making, dead (its maker died) or planned; `campaigns` are directories."""

    reference: str
    state: str
    size_bytes: int
    age_s: float
    campaigns: tuple[str, ...]
    stale: tuple[str, ...]


def enter_campaign(store: Store, directory: Path) -> None:
    """Tells the store that a campaign directory uses it."""
    folder = store.root / _REGISTER
    store.make_folder(folder)
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    save(folder / f"{name}.json", _Entry(directory=str(directory.resolve())))


def used_by(store: Store, *, all_known: bool = False) -> dict[str, tuple[str, ...]]:
    """For each artifact (`stage/key`) the campaign directories that name it; campaigns that are gone count no more.

    One that may not be read (another user's) is left out, or, if `all_known` is asked for, an ArtifactError.
    """
    users: dict[str, list[str]] = {}
    for path in sorted((store.root / _REGISTER).glob("*.json")):
        directory = load(path, _Entry).directory
        campaign = Path(directory) / CAMPAIGN_FILE
        try:
            if not campaign.exists():
                continue
        except PermissionError:
            if all_known:
                raise ArtifactError(
                    f"{campaign}: may not be read, so it is not known what it uses; "
                    "ask its owner to collect, or to let your group read it"
                ) from None
            continue
        for point in load(campaign, CampaignFile).points:
            for stage, key in point.keys.items():
                names = users.setdefault(f"{stage}/{key}", [])
                if directory not in names:
                    names.append(directory)
    return {reference: tuple(names) for reference, names in users.items()}


def listing(store: Store, lives: Lives = holder_lives, *, all_known: bool = False) -> list[Kept]:
    """Every artifact of the store, oldest first; `all_known` as in `used_by`."""
    if not store.root.is_dir():
        raise ArtifactError(f"{store.root}: there is no store here; give its folder with --store DIR")
    users = used_by(store, all_known=all_known)
    kept = [_kept(store, reference, users.get(reference, ()), lives) for reference in store.references()]
    return sorted(kept, key=lambda artifact: -artifact.age_s)


def collect(store: Store, *, dry_run: bool = False, lives: Lives = holder_lives) -> list[Kept]:
    """Removes what no campaign uses and nobody is making; returns what went (or, with `dry_run`, would go).

    ArtifactError where some campaign of this store may not be read: nothing is removed then.
    """
    gone = [
        artifact
        for artifact in listing(store, lives, all_known=True)
        if not artifact.campaigns
        and (artifact.state in ("done", "dead") or (artifact.state == "planned" and artifact.age_s > GRACE_S))
    ]
    for artifact in gone if not dry_run else ():
        store.remove(artifact.reference)
    return gone


def _kept(store: Store, reference: str, campaigns: tuple[str, ...], lives: Lives) -> Kept:
    directory = store.directory(reference)
    holder = store.holder(reference)
    if (directory / "done.json").exists():
        state = "done"
    elif holder is None:
        state = "planned"
    else:
        state = "making" if lives(holder.claim, holder.silent_s) else "dead"
    try:
        stale = tuple(store.stale(reference))
    except (ArtifactError, FieldError):
        stale = ("done.json",)
    return Kept(
        reference=reference,
        state=state,
        size_bytes=sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
        age_s=time.time() - (directory / REQUEST).stat().st_mtime,
        campaigns=campaigns,
        stale=stale,
    )
