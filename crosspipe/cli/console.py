"""Where verbs print: the terminal as wide as it is; in a pipe or log wide enough for tables, since nobody asked."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_WIDE = 140


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout (or stderr)."""
    stream = sys.stderr if stderr else sys.stdout
    narrow = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if narrow else _WIDE)
