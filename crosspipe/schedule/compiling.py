"""Compiled functions: `compiled` is numba's `njit` with a disk cache that works wherever the package is installed.

Numba caches beside the source, which fails in a read-only site installation. `NUMBA_CACHE_DIR` is honoured; else the
first writable of the package's own directory, the user's cache directory and the temporary directory is used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """`function` compiled by numba in nopython mode, without the GIL, cached on disk."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


def cache_directory() -> Path | None:
    """Where numba shall cache; None: beside the sources, which is numba's own choice and is writable here."""
    package = Path(__file__).parent
    if os.access(package, os.W_OK):
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    for candidate in (home / "crosspipe" / "numba", Path(tempfile.gettempdir()) / f"crosspipe-numba-{os.getuid()}"):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    return None


if not os.environ.get("NUMBA_CACHE_DIR") and (found := cache_directory()) is not None:
    numba.config.CACHE_DIR = str(found)
