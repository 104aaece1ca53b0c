"""The store: `<root>/<stage>/<key>/` holds request.json, the payload and, written last, done.json with its digests.

One store serves all campaigns of a user or project. It knows artifacts, claims and epochs; what the stages compute, and
when, is `crosspipe.campaign`'s business. Nothing here needs a lock: every file is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from crosspipe.errors import ArtifactError
from crosspipe.store import claims
from crosspipe.store.claims import Claim, Held, Lives, holder_lives
from crosspipe.store.files import disk_errors, flush, load, save, share, wait_for
from crosspipe.store.request import Request

REQUEST, DONE = "request.json", "done.json"


class TakenOver(ArtifactError):
    """Whoever made the artifact was taken for dead, and another makes it now."""


class Done(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="done"):
    """An artifact is complete: SHA-256 of each payload file, and the digest of each input as it was read.

    `wall_s` is how long the work took, `finished_at_s` seconds since the epoch (UTC).
    """

    schema: int = 1
    files: dict[str, str]
    inputs: dict[str, str] = {}
    wall_s: float
    finished_at_s: float

    def digest(self) -> str:
        """SHA-256 over the payload's digests: what a consumer records."""
        return hashlib.sha256(msgspec.json.encode(self.files, order="sorted")).hexdigest()


class Making(NamedTuple):
    """Work on one artifact: payload files go to `scratch`. `started_s` is monotonic."""

    request: Request
    directory: Path
    scratch: Path
    claim: Claim
    inputs: dict[str, str]
    started_s: float


class Store:
    """Artifacts below `root`; the folder is made when first written to."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def directory(self, reference: Request | str) -> Path:
        """Where an artifact lies; `reference` is a request or `stage/key`."""
        return self.root / (reference if isinstance(reference, str) else reference.reference)

    def done(self, reference: Request | str) -> Done | None:
        """What done.json says, None while it is not there."""
        path = self.directory(reference) / DONE
        return load(path, Done) if path.exists() else None

    def request(self, reference: str) -> Request:
        """The request of `stage/key`; ArtifactError if the store has none."""
        return load(self.directory(reference) / REQUEST, Request)

    def file(self, reference: Request | str, name: str, *, patience_s: float = 5.0) -> Path:
        """Path of a payload file of a finished artifact; waits up to `patience_s` where the file system lags."""
        path = self.directory(reference) / name
        deadline, pause = time.monotonic() + patience_s, 0.05
        while not (path.exists() and (path.parent / DONE).exists()):
            if time.monotonic() > deadline:
                raise ArtifactError(f"{path}: is not there (or not finished); run the campaign again to make it")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        return path

    def make_folder(self, directory: Path) -> None:
        """A folder of the store, with its parents: whoever may write beside it may write in it."""
        if directory.is_dir():
            return
        with disk_errors(directory):
            if directory != self.root:
                self.make_folder(directory.parent)
                directory.mkdir(exist_ok=True)
                share(directory)
            else:
                directory.mkdir(parents=True, exist_ok=True)

    def register(self, request: Request) -> Path:
        """Makes the artifact's folder with its request.json; returns the folder."""
        directory = self.directory(request)
        self.make_folder(directory)
        if not (directory / REQUEST).exists():
            save(directory / REQUEST, request)
        return directory

    def epoch_of(self, request: Request, *, max_age_s: float | None, refresh: bool = False) -> Request:
        """`request` with the epoch to use: the newest measurement begun within `max_age_s`, else the next one.

        A measurement begun but not finished counts, so that a campaign killed and started again goes on with it.
        """
        known = [r for r in self.requests(request.stage) if r.epoch is not None and request.same_measurement(r)]
        newest = max(known, key=lambda r: r.epoch or 0, default=None)
        if newest is not None and newest.epoch is not None:
            done = self.done(newest)
            began_s = (self.directory(newest) / REQUEST).stat().st_mtime
            age_s = time.time() - (done.finished_at_s if done else began_s)
            aged = max_age_s is not None and age_s > max_age_s
            if not aged and not (refresh and done is not None):
                return newest
            return msgspec.structs.replace(request, epoch=newest.epoch + 1)
        return msgspec.structs.replace(request, epoch=1)

    def requests(self, stage: str) -> Iterator[Request]:
        """Every request of a stage that the store knows."""
        for path in sorted((self.root / stage).glob(f"*/{REQUEST}")):
            yield load(path, Request)

    def references(self) -> Iterator[str]:
        """Every artifact, as `stage/key`."""
        for path in sorted(self.root.glob(f"*/*/{REQUEST}")):
            yield f"{path.parent.parent.name}/{path.parent.name}"

    def holder(self, reference: Request | str) -> Held | None:
        """Who claims to be making the artifact, alive or not."""
        return claims.current(self.directory(reference))

    def claim(self, request: Request, claim: Claim, lives: Lives = holder_lives) -> Claim | None:
        """Claims an artifact that is to be made. None: go ahead; else the living claim of whoever makes it."""
        holder = claims.take(self.register(request), claim, lives)
        return None if holder.token == claim.token else holder

    def begin(self, request: Request, claim: Claim) -> Making:
        """Starts the work on a claimed artifact; to be ended by `finish` or `abandon`.

        Digests of the inputs are recorded as they are now. Raises ArtifactError if an input is not finished, and
        releases the claim then.
        """
        directory = self.register(request)
        scratch = _scratch(directory, claim)
        try:
            inputs = {name: self._digest(name, reference) for name, reference in request.inputs.items()}
            self.make_folder(scratch)
        except BaseException:
            self._release(directory, claim)
            raise
        return Making(request, directory, scratch, claim, inputs, time.monotonic())

    def finish(self, making: Making, expect: Collection[str] = (), *, patience_s: float = 0.0) -> None:
        """What lies in the scratch folder becomes the artifact: files first, done.json last.

        Waits up to `patience_s` for the files that it is to `expect`, which another machine may have written. Raises
        ArtifactError where one of them is missing, TakenOver where the claim is no longer ours: the
        artifact is then as it was, and the scratch folder the caller's to `abandon`.
        """
        directory = making.directory
        if (directory / DONE).exists():  # another was faster: what stands is as good
            shutil.rmtree(making.scratch, ignore_errors=True)
            claims.clear(directory)
            return
        missing = wait_for(making.scratch, expect, patience_s)
        if missing:
            names = ", ".join(missing)
            raise ArtifactError(f"{making.scratch}: the {making.request.stage} stage ended without writing {names}")
        digests = {path.name: file_digest(path) for path in sorted(making.scratch.iterdir())}
        held = claims.current(directory)
        if held is None or held.claim.token != making.claim.token:
            who = "nobody now" if held is None else f"process {held.claim.pid} on {held.claim.host}"
            raise TakenOver(f"{directory}: taken for dead, this work was taken over by {who}")
        for name in digests:
            path = making.scratch / name
            with disk_errors(directory / name):
                share(path)
                flush(path)
                path.replace(directory / name)
        wall_s = time.monotonic() - making.started_s
        save(directory / DONE, Done(files=digests, inputs=making.inputs, wall_s=wall_s, finished_at_s=time.time()))
        for claim in (making.claim, *claims.superseded(directory, held)):  # ours, and what the dead left
            shutil.rmtree(_scratch(directory, claim), ignore_errors=True)
        claims.clear(directory)

    def abandon(self, making: Making) -> None:
        """The work failed: the scratch folder goes, the claim is released."""
        shutil.rmtree(making.scratch, ignore_errors=True)
        self._release(making.directory, making.claim)

    @contextlib.contextmanager
    def making(self, request: Request, claim: Claim) -> Iterator[Path]:
        """`begin`, the block with the scratch folder, then `finish`, or `abandon` on any error."""
        making = self.begin(request, claim)
        try:
            with disk_errors(making.scratch):
                yield making.scratch
            self.finish(making)
        except BaseException:
            self.abandon(making)
            raise

    def stale(self, reference: str) -> list[str]:
        """Names of the inputs that have changed (or gone) since a finished artifact read them."""
        done = self.done(reference)
        if done is None:
            return []
        inputs = self.request(reference).inputs
        changed = []
        for name, digest in done.inputs.items():
            now = self.done(inputs[name])
            if now is None or now.digest() != digest:
                changed.append(name)
        return changed

    def damaged(self, reference: str) -> list[str]:
        """Names of payload files that are missing or differ from what done.json recorded."""
        done, directory = self.done(reference), self.directory(reference)
        if done is None:
            return []
        return [
            name
            for name, digest in done.files.items()
            if not (directory / name).exists() or file_digest(directory / name) != digest
        ]

    def remove(self, reference: str) -> None:
        """Removes an artifact: its done.json first, so that no reader takes the rest for finished."""
        directory = self.directory(reference)
        (directory / DONE).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def _digest(self, name: str, reference: str) -> str:
        self.file(reference, DONE)
        done = self.done(reference)
        if done is None:
            raise ArtifactError(f"{self.directory(reference)}: input {name} is not finished; run the campaign again")
        return done.digest()

    def _release(self, directory: Path, claim: Claim) -> None:
        with contextlib.suppress(ArtifactError):  # on a full disk the claim ends with its process
            claims.release(directory, claim)


def _scratch(directory: Path, claim: Claim) -> Path:
    return directory / f".{claim.token[:12]}.work"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
