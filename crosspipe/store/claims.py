"""Claims: who is making an artifact right now, so that no work is done twice, without file locks.

The first claim on an artifact is `claim.json`; one that takes over from a dead holder is `claim.2.json`, and so on.
Each is created exclusively and complete (a hard link), the highest number holds, and nothing is ever deleted before the
artifact is done: so of many that find a holder dead, exactly one takes over.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from crosspipe.store.files import disk_errors, flush, load, pretty, share

_NAME = re.compile(r"claim(?:\.(\d+))?\.json")


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="claim"):
    """Who holds an artifact. A process is told from a later one of the same number by when it started.

    `job` is the scheduler's job id and `array_index` the task in its array; `released` marks a holder that gave up (its
    work failed), which is as good as dead.
    """

    schema: int = 1
    token: str
    host: str
    pid: int
    process_started: str
    submitted_at_s: float
    job: str | None = None
    array_index: int | None = None
    released: bool = False


def my_claim(job: str | None = None, array_index: int | None = None) -> Claim:
    """A claim for this process."""
    return Claim(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=process_started(os.getpid()) or "",
        submitted_at_s=time.time(),
        job=job,
        array_index=array_index,
    )


def process_started(pid: int) -> str | None:
    """Boot id and start tick of a process of this machine; None if there is no such process (a zombie is none)."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else f"{boot}:{rest[18]}"


def holder_lives(claim: Claim) -> bool:
    """Whether the holder still works: exact on its own machine, assumed elsewhere (a scheduler may know better)."""
    if claim.released:
        return False
    if claim.host != socket.gethostname():
        return True
    return process_started(claim.pid) == claim.process_started


def current(directory: Path) -> tuple[int, Claim] | None:
    """The claim that holds `directory`, with its number; None if nobody ever claimed it."""
    numbers = [int(found[1] or 1) for name in _listing(directory) if (found := _NAME.fullmatch(name))]
    if not numbers:
        return None
    number = max(numbers)
    return number, load(_path(directory, number), Claim)


def take(directory: Path, claim: Claim, lives: Callable[[Claim], bool] = holder_lives) -> Claim:
    """Tries to claim `directory`; returns the claim that holds it afterwards (`claim` itself if it won)."""
    while True:
        held = current(directory)
        if held is not None and (held[1].token == claim.token or lives(held[1])):
            return held[1]
        if _create(_path(directory, (held[0] if held else 0) + 1), claim):
            return claim


def release(directory: Path, claim: Claim) -> None:
    """Gives up `claim` after a failure, so that the next to come need not ask whether its holder lives."""
    held = current(directory)
    if held is not None and held[1].token == claim.token:
        _create(_path(directory, held[0] + 1), msgspec.structs.replace(claim, released=True))


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
