"""A reason to distrust a measurement, as every artifact carries it."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reason to distrust a measurement: `name` in snake case, `detail` one sentence with the numbers."""

    name: str
    detail: str
