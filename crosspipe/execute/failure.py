"""How a rank says that it failed, and who it was when several fail at once.

A rank whose own work failed is the culprit; one that only lost a peer is a witness; one that was killed or stopped says
nothing, and its position file speaks for it. That turns the four errors of four ranks into one.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.execute.position import Position, read_position
from crosspipe.store import load, save


class PeerLost(CrosspipeError):
    """Another rank is gone or does not answer within the time-out; `peer` is its number (-1: unknown)."""

    def __init__(self, peer: int, reason: str) -> None:
        self.peer = peer
        super().__init__(reason)


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="rank_failure"):
    """A rank's own word: what failed, when (CLOCK_MONOTONIC ns of its host), and whether it only lost a peer."""

    schema: int = 1
    message: str
    witness: bool
    stamp_ns: int


class Culprit(msgspec.Struct, frozen=True):
    """Who failed: rank, what became of it, and where it was."""

    rank: int
    what: str
    position: Position | None

    def __str__(self) -> str:
        return f"rank {self.rank} {self.what}" + (f" ({self.position})" if self.position else "")


def position_file(directory: Path, rank: int) -> Path:
    """Where a rank writes its position."""
    return directory / f"rank{rank}.position"


def log_file(directory: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return directory / f"rank{rank}.log"


def report_file(directory: Path, rank: int) -> Path:
    """Where a rank says why it failed."""
    return directory / f"rank{rank}.failure.json"


def forget(directory: Path, ranks: int) -> None:
    """Removes positions and reports of an earlier start; logs are kept."""
    for rank in range(ranks):
        position_file(directory, rank).unlink(missing_ok=True)
        report_file(directory, rank).unlink(missing_ok=True)


def report_failures(rank: int, directory: Path) -> None:
    """From now on an error that ends this process is also reported in `directory`, and ends it at once.

    At once: the transport's threads must not hold up a rank that has failed, its peers notice by its end.
    """

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # torch.distributed puts a buffer in the place of sys.stderr while this runs, and would print it only afterwards
        traceback.print_exception(kind, error, trace, file=sys.__stderr__)
        message = str(error) if isinstance(error, CrosspipeError) else f"{kind.__name__}: {error}"
        now = time.monotonic_ns()
        witness = isinstance(error, PeerLost)
        save(report_file(directory, rank), Report(message=message, witness=witness, stamp_ns=now))
        os._exit(1)

    sys.excepthook = report


def first_sentence(error: Exception) -> str:
    """Of what torch says: without the place in its sources, and without what follows."""
    words = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip()) or type(error).__name__
    return words.splitlines()[0].split(". ")[0]


def find_culprit(
    directory: Path, codes: Sequence[int | None], pids: Mapping[int, int], *, all_ended: bool = False
) -> Culprit:
    """Who is to blame, from the exit code of each rank (None: still running, or unknown) and what they left behind.

    `all_ended` says that none runs, though their codes are unknown.

    In this order: a rank killed by a signal; one whose own work failed; one that ended without a word; one that is
    still there and silent (stopped first, then busy rather than waiting); one that aborted; else the first witness.
    An abort is no proof of guilt: NCCL's watchdog ends so a rank whose peer does not answer.
    """
    ranks = range(len(codes))
    reports = {rank: report for rank in ranks if (report := _read_report(directory, rank)) is not None}
    positions = {rank: read_position(position_file(directory, rank)) for rank in ranks}

    def culprit(rank: int, what: str) -> Culprit:
        return Culprit(rank, what, positions[rank])

    for rank in ranks:
        code = codes[rank]
        if code is not None and code < 0 and code != -signal.SIGABRT and rank not in reports:
            return culprit(rank, f"was killed by {signal.Signals(-code).name}")
    own = [rank for rank in reports if not reports[rank].witness]
    if own:
        rank = min(own, key=lambda r: reports[r].stamp_ns)
        return culprit(rank, f"failed: {reports[rank].message}")
    for rank in ranks:
        if (codes[rank] or 0) > 0 and rank not in reports:
            return culprit(rank, f"ended with code {codes[rank]}")
    silent = [rank for rank in ranks if codes[rank] is None and rank not in reports]
    if silent:
        stopped = [rank for rank in silent if rank in pids and _is_stopped(pids[rank])]
        if stopped:
            return culprit(stopped[0], "is stopped")
        rank = min(silent, key=lambda r: _patience(positions[r]))
        return culprit(rank, "ended without a word" if all_ended else "hangs")
    for rank in ranks:
        if codes[rank] == -signal.SIGABRT and rank not in reports:
            return culprit(rank, "was killed by SIGABRT")
    rank = min(reports, key=lambda r: reports[r].stamp_ns)
    return culprit(rank, f"failed: {reports[rank].message}")


def _read_report(directory: Path, rank: int) -> Report | None:
    try:
        return load(report_file(directory, rank), Report)
    except ArtifactError:
        return None


def _patience(position: Position | None) -> tuple[bool, int]:
    """Sort key of silent ranks: one that is busy comes before one that waits, then the one silent for longest."""
    return (False, 0) if position is None else (position.words.startswith("wait for"), position.stamp_ns)


def _is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return re.sub(r".*\) ", "", status)[:1] in ("T", "t")


def tail(log: Path, lines: int, since: int = 0) -> str:
    """The last lines of a log, without empty and repeated ones, joined by ` | ` so that an error stays one line.

    `since` is the byte at which what matters begins: logs are appended to.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - 8192))
        text = file.read().decode(errors="replace")
    return " | ".join(list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))[-lines:])
