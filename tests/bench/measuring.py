"""Measures what the measurements are worth: `python tests/bench/measuring.py` (some ten minutes on a quiet machine).

Links against mpi4py's and Intel's benchmarks, in interleaved pairs, and against plain sockets on a shaped link; blocks
against plain autograd, torch's profiler and its FLOP counter. `--quick` shows that it works, in a minute, and judges
nothing. IMB-MPI1 is fetched from PyPI (`impi-rt`) into build/ where it is not yet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from support.block_checks import block_checks
from support.driver import Found, Task, carry_out
from support.link_pairs import pair_checks
from support.measuring_check import Check
from support.options import options_of
from support.page import interval_words, table
from support.results import Result, Speed, Wanted
from support.wan_checks import wan_checks


def main(arguments: Sequence[str]) -> int:
    options = options_of(__doc__, arguments)
    checks = [*block_checks(options.quick), *pair_checks(options.quick), *wan_checks(options.quick)]
    page = partial(_page, checks, options.quick)
    return carry_out("measuring", "What the measurements are worth", list(map(_task, checks)), page, options, arguments)


def _task(check: Check) -> Task:
    def words(result: Result) -> str:
        assert isinstance(result, Speed)
        return f"{result.spread.median:.4g} {check.unit} (must: {check.must})"

    return Task(check.key, Wanted(), lambda setup, show: check.measured(), words)


def _words(verdict: str) -> str:
    return verdict if verdict == "met" else f"**{verdict}**"


def _page(checks: Sequence[Check], quick: bool, found: Found) -> list[str]:
    rows = []
    for check in checks:
        if check.key not in found:
            rows.append([check.key, check.must, "–", "–", "–", "not measured"])
            continue
        result = found[check.key][1]
        assert isinstance(result, Speed)
        verdict = "not judged" if quick else _words(check.verdict(result.spread))
        rows.append([check.key, check.must, *interval_words(result.spread), f"{check.unit}: {verdict}"])
    heads = ["what", "must", "median", "95 % interval", "samples", "verdict"]
    return [
        "A ratio is ours over theirs. Pairs are interleaved, so that whatever else the machine does meets both; the "
        "ratio is taken pair by pair. *Not settled* is a ratio whose interval is too wide to tell: the machine was "
        "busy. Links here run over TCP inside one machine, or over the shaped link that `slurm/devcluster/wan` makes; "
        "what could not be run (no root, no TUN, no IMB-MPI1) stands as not measured. At 1 KB one way takes a few "
        "microseconds, of which the Python of mpi4py.bench is more than ours, and IMB-MPI1 has none: a ratio below "
        "0.95 to the one, with 1 in the interval of the other, says that.",
        table(heads, rows, text_columns=2),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
