"""Keys, claims, epochs, completion: what stands in the store after things go right, wrong, or twice at once."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from crosspipe.errors import ArtifactError
from crosspipe.store import Request, Store, TakenOver, my_claim
from crosspipe.store.claims import current, holder_lives, process_started, touch

SOLVE = Request(stage="solve", version=1, config={"schedule": "1f1b", "seed": 0}, inputs={"blocks": "blocks/ab"})
LINKS = Request(stage="links", version=1, config={"ranks": 4})


def make(store: Store, request: Request, text: str = "{}") -> None:
    claim = my_claim()
    assert store.claim(request, claim) is None
    with store.making(request, claim) as scratch:
        (scratch / "payload.json").write_text(text)


def fill_up(path: Path) -> None:
    path.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_key_is_the_hash_of_the_sorted_request() -> None:
    by_hand = (
        '{"config":{"schedule":"1f1b","seed":0},"epoch":null,"inputs":{"blocks":"blocks/ab"},'
        '"stage":"solve","version":1}'
    )
    assert SOLVE.key == hashlib.sha256(by_hand.encode()).hexdigest()
    turned = Request(stage="solve", version=1, config={"seed": 0, "schedule": "1f1b"}, inputs={"blocks": "blocks/ab"})
    assert turned.key == SOLVE.key


@pytest.mark.parametrize(
    "change", [{"stage": "run"}, {"version": 2}, {"config": {}}, {"inputs": {"blocks": "blocks/cd"}}, {"epoch": 1}]
)
def test_everything_that_determines_the_artifact_changes_the_key(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(SOLVE, **change).key != SOLVE.key


def test_done_is_written_last_with_the_digests_of_the_payload(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    make(store, LINKS, "hello")
    folder = tmp_path / "store" / "links" / LINKS.key
    assert sorted(path.name for path in folder.iterdir()) == ["done.json", "payload.json", "request.json"]
    done = json.loads((folder / "done.json").read_text())
    assert done["files"] == {"payload.json": hashlib.sha256(b"hello").hexdigest()}
    assert store.file(LINKS, "payload.json").read_text() == "hello"
    assert store.damaged(LINKS.reference) == []
    (folder / "payload.json").write_text("other")
    assert store.damaged(LINKS.reference) == ["payload.json"]


def test_a_failure_leaves_nothing_and_frees_the_claim(tmp_path: Path) -> None:
    store, claim = Store(tmp_path), my_claim()
    assert store.claim(LINKS, claim) is None
    with pytest.raises(ArtifactError, match="the disk is full"), store.making(LINKS, claim) as scratch:
        fill_up(scratch / "payload.json")
    assert store.done(LINKS) is None
    left = {path.name for path in store.directory(LINKS).iterdir()}
    assert left == {"request.json", "claim.json", "claim.2.json"}
    make(store, LINKS)  # this same living process may try again
    assert store.done(LINKS) is not None


def test_a_living_claim_is_honoured_and_a_dead_one_taken_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    code = (
        "import sys, time; from crosspipe.store import Request, Store, TakenOver, my_claim;"
        f"r = Request(stage='links', version=1, config={LINKS.config!r});"
        "assert Store(sys.argv[1]).claim(r, my_claim(job='17')) is None; print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        other = store.claim(LINKS, my_claim())
        assert other is not None
        assert (other.pid, other.job) == (holder.pid, "17")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert store.claim(LINKS, my_claim()) is None
    found = current(store.directory(LINKS))
    assert found is not None
    assert (found.number, found.claim.pid) == (2, os.getpid())


def test_a_process_number_used_again_is_not_the_holder() -> None:
    claim = my_claim()
    assert holder_lives(claim)
    assert not holder_lives(msgspec.structs.replace(claim, process_started="another boot:1"))
    elsewhere = msgspec.structs.replace(claim, host="elsewhere", process_started="")
    assert holder_lives(elsewhere, silent_s=30.0)
    assert not holder_lives(elsewhere, silent_s=3600.0)
    assert not holder_lives(msgspec.structs.replace(claim, released=True))
    assert process_started(2**22 + 1) is None


def test_a_silent_holder_on_another_machine_is_taken_over_unless_it_touches_its_claim(tmp_path: Path) -> None:
    store, other = Store(tmp_path), msgspec.structs.replace(my_claim(), host="elsewhere")
    assert store.claim(LINKS, other) is None
    file = store.directory(LINKS) / "claim.json"
    long_ago = time.time() - 3600
    os.utime(file, (long_ago, long_ago))
    touch(store.directory(LINKS), other)
    assert store.claim(LINKS, my_claim()) == other
    os.utime(file, (long_ago, long_ago))
    assert store.claim(LINKS, my_claim()) is None


def _race(root: str, start_at: float, results: multiprocessing.queues.Queue) -> None:
    claim = my_claim()
    time.sleep(max(0.0, start_at - time.time()))
    results.put(Store(root).claim(LINKS, claim) is None)
    time.sleep(0.5)  # stay alive until all have tried


@pytest.mark.parametrize("dead_first", [False, True])
def test_of_many_at_once_exactly_one_gets_the_claim(tmp_path: Path, dead_first: bool) -> None:
    if dead_first:
        Store(tmp_path).claim(LINKS, msgspec.structs.replace(my_claim(), process_started="an earlier boot:1"))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    start_at = time.time() + 0.3
    racers = [context.Process(target=_race, args=(str(tmp_path), start_at, results)) for _ in range(6)]
    for racer in racers:
        racer.start()
    won = [results.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(won) == 1


def test_what_a_killed_maker_left_goes_when_the_artifact_is_done(tmp_path: Path) -> None:
    store = Store(tmp_path)
    dead = msgspec.structs.replace(my_claim(), process_started="an earlier boot:1")
    store.claim(LINKS, dead)
    (store.begin(LINKS, dead).scratch / "half.json").write_text("{")
    make(store, LINKS, "whole")
    left = {path.name for path in store.directory(LINKS).iterdir()}
    assert left == {"request.json", "payload.json", "done.json"}


def test_inputs_are_recorded_and_a_later_change_shows_as_stale(tmp_path: Path) -> None:
    store = Store(tmp_path)
    request = Request(stage="solve", version=1, config={}, inputs={"links": LINKS.reference})
    with pytest.raises(ArtifactError, match="not finished"):
        store.file(LINKS, "payload.json", patience_s=0.0)
    make(store, LINKS, "one")
    make(store, request)
    assert store.stale(request.reference) == []
    store.remove(LINKS.reference)
    assert store.stale(request.reference) == ["links"]
    make(store, LINKS, "one")
    assert store.stale(request.reference) == []
    store.remove(LINKS.reference)
    make(store, LINKS, "two")
    assert store.stale(request.reference) == ["links"]


def test_epochs_the_newest_within_its_age_else_the_next(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.epoch_of(LINKS, max_age_s=3600)
    assert first.epoch == 1
    store.register(first)  # planned, then the campaign was killed: the next one goes on with it
    assert store.epoch_of(LINKS, max_age_s=3600, refresh=True).epoch == 1
    make(store, first)
    assert store.epoch_of(LINKS, max_age_s=3600).epoch == 1
    assert store.epoch_of(LINKS, max_age_s=None).epoch == 1
    assert store.epoch_of(LINKS, max_age_s=3600, refresh=True).epoch == 2
    done = store.directory(first) / "done.json"
    month_ago = json.loads(done.read_text()) | {"finished_at_s": time.time() - 30 * 86400}
    done.write_text(json.dumps(month_ago))
    assert store.epoch_of(LINKS, max_age_s=3600).epoch == 2
    assert store.epoch_of(msgspec.structs.replace(LINKS, config={"ranks": 8}), max_age_s=3600).epoch == 1
    assert store.done(first) is not None  # the old measurement stays


def test_a_shared_store_stays_writable_for_the_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        make(Store(tmp_path), LINKS)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        wanted = 0o070 if path.is_dir() else 0o060
        assert stat.S_IMODE(path.stat().st_mode) & wanted == wanted, path


def test_readers_wait_for_a_lagging_file_system(tmp_path: Path) -> None:
    store = Store(tmp_path)
    make(store, LINKS, "late")
    done = store.directory(LINKS) / "done.json"
    hidden = done.rename(tmp_path / "hidden")
    code = f"import time, os; time.sleep(0.4); os.rename({str(hidden)!r}, {str(done)!r})"
    with subprocess.Popen([sys.executable, "-c", code]):
        assert store.file(LINKS, "payload.json", patience_s=10).read_text() == "late"


def test_a_payload_that_shows_late_is_waited_for_and_one_that_never_comes_leaves_nothing_done(tmp_path: Path) -> None:
    store, claim = Store(tmp_path), my_claim()
    store.claim(LINKS, claim)
    making = store.begin(LINKS, claim)
    (making.scratch / "samples.parquet").write_text("early")
    with pytest.raises(ArtifactError, match=r"the links stage ended without writing links\.json"):
        store.finish(making, ("links.json", "samples.parquet"), patience_s=0.1)
    assert store.done(LINKS) is None
    code = f"import time; time.sleep(0.4); open({str(making.scratch / 'links.json')!r}, 'w').write('late')"
    with subprocess.Popen([sys.executable, "-c", code]):
        store.finish(making, ("links.json", "samples.parquet"), patience_s=10)
    done = store.done(LINKS)
    assert done is not None
    assert set(done.files) == {"links.json", "samples.parquet"}
    assert store.file(LINKS, "links.json").read_text() == "late"


def test_who_was_taken_over_publishes_nothing_and_leaves_the_successor_its_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new = my_claim(), my_claim()
    store.claim(LINKS, old)
    lost = store.begin(LINKS, old)
    (lost.scratch / "payload.json").write_text("old")
    assert store.claim(LINKS, new, lambda claim, silent_s: False) is None
    making = store.begin(LINKS, new)
    (making.scratch / "payload.json").write_text("new")
    with pytest.raises(TakenOver, match=f"taken over by process {os.getpid()}"):
        store.finish(lost, ("payload.json",))
    store.abandon(lost)
    held = store.holder(LINKS)
    assert held is not None
    assert held.claim == new
    store.finish(making, ("payload.json",))
    assert store.file(LINKS, "payload.json").read_text() == "new"


def test_of_two_that_finish_the_first_stands(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new = my_claim(), my_claim()
    store.claim(LINKS, old)
    lost = store.begin(LINKS, old)
    (lost.scratch / "payload.json").write_text("old")
    store.claim(LINKS, new, lambda claim, silent_s: False)
    make_from = store.begin(LINKS, new)
    (make_from.scratch / "payload.json").write_text("new")
    store.finish(make_from)
    store.finish(lost)
    left = {path.name for path in store.directory(LINKS).iterdir()}
    assert left == {"request.json", "payload.json", "done.json"}
    assert store.file(LINKS, "payload.json").read_text() == "new"
