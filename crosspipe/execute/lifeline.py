"""Processes that end with the one that started them, whatever ends that: a kernel's promise (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None)  # loaded here: little may be done between fork and exec
_PR_SET_PDEATHSIG = 1


def die_with(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """In a child, before or after exec: from now on it gets the signal `by` when process `parent`, its own, dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), by)
