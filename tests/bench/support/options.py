"""The command line that every benchmark script shares, so that `make bench` can pass one set of options to all."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[3]


def options_of(what: str, arguments: Sequence[str]) -> argparse.Namespace:
    """`what` describes the script. `out` is where results and page go: docs/benchmarks, or build/ for a quick run."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small problems, into build/benchmarks")
    parser.add_argument("--only", type=_regex, default="", metavar="REGEX", help="measure only what has such a key")
    parser.add_argument("--time-limit", type=float, metavar="S", help="for every search, instead of its own")
    parser.add_argument("--workers", type=int, default=2, help="threads of every search (2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="say what would be measured, measure nothing")
    parser.add_argument("--out", type=Path, help="folder of the results and the page (docs/benchmarks)")
    options = parser.parse_args(arguments)
    if options.out is None:
        options.out = ROOT / ("build/benchmarks" if options.quick else "docs/benchmarks")
    return options


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def terminal() -> Console:
    """Where progress goes: stderr, wide enough in a log."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 140, highlight=False)
