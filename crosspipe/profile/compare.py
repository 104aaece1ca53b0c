"""Two or more measurements side by side: `python -m crosspipe.profile.compare OLD.json … NEW.json`, oldest first.

Prints what lies beyond noise (`crosspipe.problem.comparison`), or with `--all` every quantity; `--strict` exits with 1
where anything does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.problem.comparison import Change, compare_blocks, compare_links
from crosspipe.store import load


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m crosspipe.profile.compare", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="links.json or blocks.json, oldest first")
    parser.add_argument("--all", action="store_true", help="also what has not changed")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if anything lies beyond noise")
    options = parser.parse_args(arguments)
    if len(options.files) < 2:
        parser.error("give two files or more, the oldest first")
    try:
        changes = compared(options.files)
    except CrosspipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    beyond = [change for change in changes if change.beyond_noise]
    for change in changes if options.all else beyond:
        print(_line(change))
    print(f"{len(beyond)} of {len(changes)} quantities beyond noise")
    return int(options.strict and bool(beyond))


def compared(files: Sequence[Path]) -> tuple[Change, ...]:
    """The changes of the last file against those before; ArtifactError where they are not all of one kind."""
    try:
        *links, now = (load(file, LinkTable) for file in files)
    except ArtifactError:
        *blocks, latest = (load(file, BlockCosts) for file in files)
        return compare_blocks(blocks, latest)
    return compare_links(links, now)


def _line(change: Change) -> str:
    before, after = (f"{s.median:.4g}" if s else "none" for s in (change.before, change.after))
    ratio = "" if change.ratio is None else f" (x {change.ratio:.3g})"
    return f"{change.what}: {before} -> {after} {change.unit}{ratio}{', beyond noise' if change.beyond_noise else ''}"


if __name__ == "__main__":
    sys.exit(main())
