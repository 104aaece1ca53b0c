"""Requests and keys: all that determines an artifact, and the hash of it that names the artifact.

A key hashes the request, not the result, so that a whole graph of stages is planned before anything runs. Measurements
carry an *epoch* besides, counted from 1: the same request made again later is another measurement, and both are kept.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from crosspipe.errors import FieldError


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="request"):
    """What an artifact is made from: `stage`, the stage's format `version`, its resolved `config`, its inputs' keys.

    `inputs` maps a name such as `links` or `solve` to `stage/key`. `epoch` is None where the result is a function of
    the request, a count from 1 where it is a measurement.
    """

    schema: int = 1
    stage: str
    version: int
    config: dict[str, Any]
    inputs: dict[str, str] = {}
    epoch: int | None = None

    def canonical(self) -> bytes:
        """Canonical JSON of what the key hashes: sorted names, no spaces; FieldError for what JSON cannot hold."""
        content = {
            "stage": self.stage,
            "version": self.version,
            "config": self.config,
            "inputs": self.inputs,
            "epoch": self.epoch,
        }
        try:
            return msgspec.json.encode(content, order="sorted")
        except TypeError as error:
            raise FieldError("config", self.stage, f"cannot be written as JSON ({error})", "use plain data") from None

    @property
    def key(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def reference(self) -> str:
        """`stage/key`: how another request's `inputs` names this one."""
        return f"{self.stage}/{self.key}"

    def same_measurement(self, other: Request) -> bool:
        """Whether `other` asks for the same thing, be it at another time."""
        return (
            msgspec.structs.replace(self, epoch=None).canonical()
            == msgspec.structs.replace(other, epoch=None).canonical()
        )
