"""Claims: who is making an artifact right now, so that no work is done twice, without file locks.

The first claim on an artifact is `claim.json`; one that takes over from a dead holder is `claim.2.json`, and so on.
Each is created exclusively and complete (a hard link), the highest number holds, and nothing is ever deleted before the
artifact is done: so of many that find a holder dead, exactly one takes over. A holder touches its claim now and then,
which tells other machines that it lives.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from crosspipe.errors import ArtifactError
from crosspipe.store.files import disk_errors, flush, load, pretty, share

SILENT_S = 600.0  # a holder on another machine that has not touched its claim for so long is dead
Lives = Callable[["Claim", float], bool]  # given the claim and for how many seconds it has been silent

_NAME = re.compile(r"claim(?:\.(\d+))?\.json")


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="claim"):
    """Who holds an artifact. A process is told from a later one of the same number by when it started.

    `job` is the scheduler's job id and `array_index` the task in its array, on `cluster` if that has a name;
    `submitted_at_s` is when the claim was made. `released` marks a holder that gave up (its work failed), which is as
    good as dead.
    """

    schema: int = 1
    token: str
    host: str
    pid: int
    process_started: str
    submitted_at_s: float
    job: str | None = None
    array_index: int | None = None
    cluster: str | None = None
    released: bool = False


class Held(NamedTuple):
    """Who holds an artifact: the number of the claim, the claim, and for how long its holder has been silent."""

    number: int
    claim: Claim
    silent_s: float


def my_claim(job: str | None = None, array_index: int | None = None, cluster: str | None = None) -> Claim:
    """A claim for this process."""
    return Claim(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=process_started(os.getpid()) or "",
        submitted_at_s=time.time(),
        job=job,
        array_index=array_index,
        cluster=cluster,
    )


def process_started(pid: int) -> str | None:
    """Boot id and start tick of a process of this machine; None if there is no such process (a zombie is none)."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else f"{boot}:{rest[18]}"


def holder_lives(claim: Claim, silent_s: float = 0.0) -> bool:
    """Whether the holder still works: exact on its own machine, elsewhere by when it last touched its claim."""
    if claim.released:
        return False
    if claim.host != socket.gethostname():
        return silent_s < SILENT_S
    return process_started(claim.pid) == claim.process_started


def current(directory: Path) -> Held | None:
    """The claim that holds `directory`; None if nobody ever claimed it, or it has just been cleared."""
    numbers = [int(found[1] or 1) for name in _listing(directory) if (found := _NAME.fullmatch(name))]
    if not numbers:
        return None
    path = _path(directory, max(numbers))
    try:
        silent_s = time.time() - path.stat().st_mtime
        return Held(max(numbers), load(path, Claim), silent_s)
    except (FileNotFoundError, ArtifactError):
        if path.exists():
            raise
        return None


def superseded(directory: Path, held: Held) -> list[Claim]:
    """The claims that `held` took over from: their holders were dead."""
    paths = (_path(directory, number) for number in range(1, held.number))
    return [load(path, Claim) for path in paths if path.exists()]


def take(directory: Path, claim: Claim, lives: Lives = holder_lives) -> Claim:
    """Tries to claim `directory`; returns the claim that holds it afterwards (`claim` itself if it won)."""
    while True:
        held = current(directory)
        if held is not None and (held.claim.token == claim.token or lives(held.claim, held.silent_s)):
            return held.claim
        if _create(_path(directory, (held.number if held else 0) + 1), claim):
            return claim


def touch(directory: Path, claim: Claim) -> None:
    """Says that the holder of `claim` lives."""
    held = current(directory)
    if held is not None and held.claim.token == claim.token:
        with contextlib.suppress(FileNotFoundError):
            os.utime(_path(directory, held.number))


def release(directory: Path, claim: Claim) -> None:
    """Gives up `claim` after a failure, so that the next to come need not ask whether its holder lives."""
    held = current(directory)
    if held is not None and held.claim.token == claim.token:
        _create(_path(directory, held.number + 1), msgspec.structs.replace(claim, released=True))


def clear(directory: Path) -> None:
    """Removes all claims of an artifact that is done."""
    for name in _listing(directory):
        if _NAME.fullmatch(name):
            (directory / name).unlink(missing_ok=True)


def _listing(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []


def _path(directory: Path, number: int) -> Path:
    return directory / ("claim.json" if number == 1 else f"claim.{number}.json")


def _create(path: Path, claim: Claim) -> bool:
    """Creates `path`, complete, unless it exists."""
    temporary = path.with_name(f".{path.name}.{claim.token}.tmp")
    with disk_errors(path):
        try:
            temporary.write_bytes(pretty(claim))
            share(temporary)
            flush(temporary)
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        flush(path.parent)
    return True
