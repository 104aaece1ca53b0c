"""CrossPipe: pipeline schedules for cross-datacenter training, with proven gaps, from measurement to report.

Everything public is exported here, lazily (PEP 562): `import crosspipe` loads nothing heavy.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_EXPORTS = {
    "crosspipe.errors": ["CrosspipeError", "Deadlock", "FieldError", "Infeasible"],
    "crosspipe.problem": ["BlockCost", "BlockCosts", "DataParallel", "Hop", "Link", "LinkTable", "Problem"],
    "crosspipe.schedule": [
        "Block", "Certificate", "Message", "Provenance", "Schedule", "Timeline", "Violation", "check", "simulate",
    ],
    "crosspipe.solver": ["solve"],
    "crosspipe.store": ["RunRecord", "Store", "load", "save"],
}  # fmt: skip
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'crosspipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
