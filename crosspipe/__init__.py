"""CrossPipe: pipeline schedules for cross-datacenter training, with proven gaps, from measurement to report.

Everything public is exported here, lazily (PEP 562): `import crosspipe` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same names for type checkers and editors; a test holds the two lists together
    from crosspipe.errors import CrosspipeError, Deadlock, FieldError, Infeasible
    from crosspipe.problem import BlockCost, BlockCosts, DataParallel, Hop, Link, LinkTable, Problem
    from crosspipe.schedule import (
        Block,
        Certificate,
        Message,
        Provenance,
        Schedule,
        Timeline,
        Violation,
        check,
        crossings_table,
        simulate,
    )
    from crosspipe.solver import SCHEDULES, lower_bound, solve
    from crosspipe.store import RunRecord, Store, load, save

__version__ = "0.1.0"
__all__ = [
    "SCHEDULES",
    "Block",
    "BlockCost",
    "BlockCosts",
    "Certificate",
    "CrosspipeError",
    "DataParallel",
    "Deadlock",
    "FieldError",
    "Hop",
    "Infeasible",
    "Link",
    "LinkTable",
    "Message",
    "Problem",
    "Provenance",
    "RunRecord",
    "Schedule",
    "Store",
    "Timeline",
    "Violation",
    "check",
    "crossings_table",
    "load",
    "lower_bound",
    "save",
    "simulate",
    "solve",
]

_HOMES = {
    "crosspipe.errors": ["CrosspipeError", "Deadlock", "FieldError", "Infeasible"],
    "crosspipe.problem": ["BlockCost", "BlockCosts", "DataParallel", "Hop", "Link", "LinkTable", "Problem"],
    "crosspipe.schedule": [
        *["Block", "Certificate", "Message", "Provenance", "Schedule", "Timeline", "Violation"],
        *["check", "crossings_table", "simulate"],
    ],
    "crosspipe.solver": ["SCHEDULES", "lower_bound", "solve"],
    "crosspipe.store": ["RunRecord", "Store", "load", "save"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'crosspipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
