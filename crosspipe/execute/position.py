"""Where a rank is: a tiny memory-mapped file that survives a kill -9, so that a failure can be named afterwards.

Written before every action (about a microsecond), read by whoever watches the rank. It is no synchronisation.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_FORMAT = struct.Struct("<qqqq224s")
SETTING_UP = -1  # as a point: before the first; as an iteration: before the first of this point


class Position(NamedTuple):
    """`point` and `iteration` are numbers, `action` an index into the plan, `words` say what the rank is doing."""

    point: int
    iteration: int
    action: int
    stamp_ns: int  # CLOCK_MONOTONIC of that host
    words: str

    def __str__(self) -> str:
        return f"iteration {self.iteration}, action {self.action}: {self.words}" if self.iteration >= 0 else self.words


class PositionWriter:
    """A rank's own end. `plan(point, texts)` names the actions to come; `at(iteration, action)` is the quick call."""

    def __init__(self, path: Path) -> None:
        # the file never has another size: whoever reads it may be mapping it already
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(handle, _FORMAT.size)
        self._map = mmap.mmap(handle, _FORMAT.size)
        os.close(handle)
        self._point = SETTING_UP
        self._texts: list[bytes] = []
        self.say("starting")

    def say(self, words: str, *, point: int | None = None) -> None:
        """Outside the plan: what the rank is busy with."""
        self._point = self._point if point is None else point
        self._write(SETTING_UP, SETTING_UP, words.encode())

    def plan(self, texts: Sequence[str]) -> None:
        """Words of the actions of the point that follows, and of what comes after the last."""
        self._texts = [text.encode() for text in texts]

    def at(self, iteration: int, action: int) -> None:
        """The rank begins this action."""
        self._write(iteration, action, self._texts[action])

    def _write(self, iteration: int, action: int, words: bytes) -> None:
        _FORMAT.pack_into(self._map, 0, self._point, iteration, action, time.monotonic_ns(), words)


def read_position(path: Path) -> Position | None:
    """What a rank last wrote; None where it has not begun."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _FORMAT.size or not any(data):
        return None
    point, iteration, action, stamp, words = _FORMAT.unpack(data[: _FORMAT.size])
    return Position(point, iteration, action, stamp, words.rstrip(b"\0").decode(errors="replace"))
