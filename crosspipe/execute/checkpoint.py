"""Checkpoints of the training state: a folder each, with a file of tensors per rank and one JSON that says whose it is.

Nothing is pickled. A checkpoint is there whole or not at all: the ranks write into a folder with another name, and the
first renames it when all have. It belongs to one problem, schedule and split, and is refused by any other, since only
then does the loss go on as if the run had never stopped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.execute.transport import Transport
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split
from crosspipe.store import load, save

_MANIFEST = "checkpoint.json"
_NAME = re.compile(r"iteration-(\d+)")


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a training state belongs to; digests are SHA-256 in hex. `data` is that of the corpus."""

    model: ModelConfig
    layers: Split
    traversal: str
    microbatches: int
    replicas: int
    zero1: bool
    seed: int
    data: str
    schedule: str
    problem: str

    def check(self, other: Identity, file: Path) -> None:
        """Raises FieldError naming the first field in which `other`, found in `file`, differs."""
        for field in self.__struct_fields__:
            here, there = getattr(self, field), getattr(other, field)
            if here != there:
                short = [str(x)[:12] if isinstance(x, str) else x for x in (there, here)]
                if isinstance(here, ModelConfig):
                    short = [x.name or "another" for x in (there, here)]
                raise FieldError(
                    field,
                    short[0],
                    f"the checkpoint is of another {field} than this run ({short[1]!r})",
                    "resume with the configuration it was made with, or start anew with run.resume=false",
                    file=file,
                )


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="checkpoint"):
    """The JSON of a checkpoint: iterations done, whose it is, and the SHA-256 of each rank's file."""

    schema: int = 1
    iterations: int
    schedule_name: str
    identity: Identity
    sha256: tuple[str, ...]


def rank_file(folder: Path, rank: int) -> Path:
    """Where a rank's tensors lie."""
    return folder / f"rank{rank}.safetensors"


def save_checkpoint(
    directory: Path,
    transport: Transport,
    state: Mapping[str, Tensor],
    *,
    iterations: int,
    schedule_name: str,
    identity: Identity,
) -> Path:
    """Writes `directory`/iteration-N and returns it; older ones go when it is there. Collective over all ranks.

    `directory` must be seen by all ranks. Raises ArtifactError where it cannot be written.
    """
    folder = directory / f"iteration-{iterations:08d}"
    partial = directory / f"partial-{iterations:08d}"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        file = rank_file(partial, transport.rank)
        save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, file)
        digest = _digest(file)
        with file.open("rb") as written:
            os.fsync(written.fileno())
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            f"{partial}: cannot be written ({error}); free space, or give another run.checkpoint_dir"
        ) from None
    digests = tuple(row.decode() for row in transport.allgather(digest.encode()))
    if transport.rank == 0:
        made = Checkpoint(iterations=iterations, schedule_name=schedule_name, identity=identity, sha256=digests)
        save(partial / _MANIFEST, made)
        shutil.rmtree(folder, ignore_errors=True)  # what somebody left without a manifest
        partial.rename(folder)
        for number, older in _all(directory):
            if number < iterations:
                shutil.rmtree(older, ignore_errors=True)
    transport.allgather(b"")
    return folder


def load_checkpoint(directory: Path, transport: Transport, identity: Identity) -> tuple[int, dict[str, Tensor]] | None:
    """(iterations done, this rank's tensors) of the newest checkpoint in `directory`; None without one. Collective.

    Raises FieldError for a checkpoint of anything but `identity`, ArtifactError for one that is damaged.
    """
    folder = newest(directory, transport)
    if folder is None:
        return None
    made = load(folder / _MANIFEST, Checkpoint)
    identity.check(made.identity, folder / _MANIFEST)
    file = rank_file(folder, transport.rank)
    if not file.exists() or _digest(file) != made.sha256[transport.rank]:
        raise ArtifactError(f"{file}: is missing or not what {_MANIFEST} says; remove {folder} and resume from before")
    return made.iterations, load_file(file)


def newest(directory: Path, transport: Transport) -> Path | None:
    """The newest complete checkpoint; one answer for all ranks, however slow their file system. Collective."""
    found = _all(directory)
    name = transport.allgather((found[-1][1].name if found else "").encode())[0].decode()
    return directory / name if name else None


def _all(directory: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    named = [(_NAME.fullmatch(entry.name), entry) for entry in directory.iterdir()]
    return sorted((int(match[1]), entry) for match, entry in named if match and (entry / _MANIFEST).exists())


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
