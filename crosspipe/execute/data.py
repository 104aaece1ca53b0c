"""What is trained on: the bytes of text files, cut into microbatches that depend on nothing but (seed, iteration, mb).

Every rank that needs tokens or targets makes them itself, so that no batch travels. A token is a byte.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crosspipe.errors import FieldError

_SUFFIXES = (".py", ".txt", ".md", ".rst", ".json", ".csv")
_INSTALLED = ("site-packages", "dist-packages", "__pycache__")


def default_path() -> Path:
    """The Python standard library's own sources."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(path: str | Path | None = None, *, at_most_bytes: int = 2**23) -> np.ndarray:
    """The bytes of a text file, or of the text files below a folder in sorted order, as a uint8 array.

    `path` None: the standard library's `*.py`, without installed packages. Reading stops after `at_most_bytes`. Raises
    FieldError where there is nothing to read.
    """
    root = default_path() if path is None else Path(path)
    suffixes = (".py",) if path is None else _SUFFIXES
    parts: list[np.ndarray] = []
    size = 0
    for file in [root] if root.is_file() else _files(root, suffixes):
        if size >= at_most_bytes:
            break
        part = np.frombuffer(file.read_bytes(), dtype=np.uint8)[: at_most_bytes - size]
        parts.append(part)
        size += len(part)
    if not size:
        raise FieldError("run.data", str(root), "holds no text to train on", f"give a file, or a folder of {suffixes}")
    return np.concatenate(parts)


def _files(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files below `root` in sorted order, folder by folder; folders of installed packages are not entered."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _INSTALLED)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(suffixes))


class Batches:
    """Microbatches of a corpus: callable as (iteration, microbatch) -> (tokens, targets), each (size, sequence) int64.

    Each sequence starts at a random place; a target is the next byte.
    """

    def __init__(self, corpus: np.ndarray, *, size: int, sequence: int, seed: int) -> None:
        if len(corpus) <= sequence:
            raise FieldError(
                "run.data", f"{len(corpus)} bytes", f"too few for sequences of {sequence}", "give more text"
            )
        self._corpus, self._size, self._sequence, self._seed = corpus, size, sequence, seed

    def digest(self) -> str:
        """SHA-256 of the corpus, in hex."""
        return hashlib.sha256(self._corpus).hexdigest()

    def __call__(self, iteration: int, microbatch: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng((self._seed, iteration, microbatch))
        starts = random.integers(len(self._corpus) - self._sequence, size=self._size)
        rows = self._corpus[starts[:, None] + np.arange(self._sequence + 1)]
        tokens = torch.from_numpy(rows.astype(np.int64))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
