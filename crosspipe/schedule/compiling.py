"""Compiled functions: `compiled` is numba's `njit` with a disk cache that is writable and never stale.

Numba caches beside the source, which fails in a read-only installation, and looks only at the file of the function
itself, so a change to a compiled function in another file would go unnoticed. Here the cache directory's name is a
digest of all files that compile something.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

from crosspipe.errors import ArtifactError

F = TypeVar("F", bound=Callable[..., object])
_KEEP_DAYS = 30  # a digest's directory that nobody used for so long is removed


def compiled(function: F) -> F:
    """`function` compiled by numba in nopython mode, without the GIL, cached on disk."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


def inlined(function: F) -> F:
    """`function` inlined where compiled code calls it: for inner loops, where a call that hands over a dozen arrays
    costs as much as its work."""
    return cast(F, numba.njit(inline="always", nogil=True)(function))


def cache_directory() -> Path:
    """Where compiled code is kept: under `NUMBA_CACHE_DIR` if set, else the user's cache or the temporary directory.

    Made if missing; ArtifactError where none of them can be written.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    fallbacks = (home / "crosspipe" / "numba", Path(tempfile.gettempdir()) / f"crosspipe-numba-{os.getuid()}")
    for base in (Path(chosen),) if chosen else fallbacks:
        directory = base / f"crosspipe-{_sources_digest()}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            os.utime(directory)
        except OSError:
            continue
        _remove_unused(base)
        return directory
    tried = chosen or " and ".join(str(base) for base in fallbacks)
    raise ArtifactError(f"{tried}: cannot be written; set NUMBA_CACHE_DIR to a directory that can")


def _sources_digest() -> str:
    """Of every file of the package that compiles something."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parents[1].glob("*/*.py")):
        content = source.read_bytes()
        if b"crosspipe.schedule.compiling import" in content or source == Path(__file__):
            digest.update(content)
    return digest.hexdigest()[:16]


def _remove_unused(base: Path) -> None:
    """Removes what older sources left behind."""
    for directory in base.glob("crosspipe-*"):
        try:
            unused = time.time() - directory.stat().st_mtime > _KEEP_DAYS * 86400
        except OSError:  # another process has just removed it
            continue
        if unused:
            shutil.rmtree(directory, ignore_errors=True)


numba.config.CACHE_DIR = str(cache_directory())
