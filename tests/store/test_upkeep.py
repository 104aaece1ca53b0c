"""`store ls` and `store gc`: what is used stays, what is being made stays, the rest goes."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from crosspipe.errors import ArtifactError
from crosspipe.store import Request, Store, my_claim, save
from crosspipe.store.campaign_file import CAMPAIGN_FILE, CampaignFile, CampaignPoint
from crosspipe.store.upkeep import collect, enter_campaign, listing


def request(name: str) -> Request:
    return Request(stage="solve", version=1, config={"name": name})


def make(store: Store, wanted: Request) -> None:
    claim = my_claim()
    store.claim(wanted, claim)
    with store.making(wanted, claim) as scratch:
        (scratch / "schedule.json").write_text("x" * 100)


def test_gc_removes_only_what_no_campaign_uses_and_nobody_makes(tmp_path: Path) -> None:
    store, campaign = Store(tmp_path / "store"), tmp_path / "campaign"
    campaign.mkdir()
    used, unused, making, planned = (request(name) for name in ("used", "unused", "making", "planned"))
    make(store, used)
    make(store, unused)
    store.claim(making, my_claim())
    store.register(planned)
    point = CampaignPoint(name="p", labels={}, keys={"solve": used.key})
    plan = CampaignFile(name="c", store=str(store.root), created_at_s=0.0, points=(point,))
    save(campaign / CAMPAIGN_FILE, plan)
    enter_campaign(store, campaign)

    states = {artifact.reference: (artifact.state, len(artifact.campaigns)) for artifact in listing(store)}
    assert states == {
        used.reference: ("done", 1),
        unused.reference: ("done", 0),
        making.reference: ("making", 0),
        planned.reference: ("planned", 0),
    }
    assert all(artifact.size_bytes > 100 for artifact in listing(store) if artifact.state == "done")

    assert [artifact.reference for artifact in collect(store, dry_run=True)] == [unused.reference]
    assert store.done(unused) is not None
    collect(store)
    assert set(store.references()) == {used.reference, making.reference, planned.reference}

    old = time.time() - 2 * 3600
    os.utime(store.directory(planned) / "request.json", (old, old))
    assert [artifact.reference for artifact in collect(store)] == [planned.reference]

    (campaign / CAMPAIGN_FILE).unlink()
    assert [artifact.reference for artifact in collect(store)] == [used.reference]


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no store here"):
        listing(Store(tmp_path / "nowhere"))


def test_the_register_of_a_shared_store_is_writable_for_the_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        enter_campaign(Store(tmp_path), tmp_path / "campaign")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "campaigns.d").stat().st_mode) & 0o070 == 0o070


def test_a_campaign_that_may_not_be_read_is_left_out_of_ls_and_keeps_gc_from_guessing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    make(store, request("one"))
    enter_campaign(store, tmp_path / "theirs")
    exists = Path.exists

    def refused(path: Path) -> bool:
        if "theirs" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refused)
    assert [artifact.reference for artifact in listing(store)] == [request("one").reference]
    with pytest.raises(ArtifactError, match=r"theirs/campaign\.json: may not be read"):
        collect(store)
    assert store.done(request("one")) is not None
