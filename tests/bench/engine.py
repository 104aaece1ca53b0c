"""Measures the engine's bar and writes it down: `python tests/bench/engine.py` (20 minutes; `--quick`: three).

It wants the machine for itself: what else runs makes blocks and messages late. Quantities that are measured together
are repeated together; the page shows the newest result of each. Shaped TCP needs root and network namespaces; without
them it is missing on the page, and the page says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial

from support.driver import Task, carry_out
from support.engine_bar import Asked, Group, Samples
from support.engine_page import engine_page
from support.engine_parts import part_groups
from support.engine_runs import early_groups, makespan_groups
from support.engine_torch import torch_groups
from support.engine_wan import wan_groups
from support.options import options_of, terminal
from support.results import Result, Speed, Wanted, now
from support.setup import DECIDING, Setup

EXECUTING = (*DECIDING, "model/*.py", "execute/*.py")  # sources that change a result
KINDS = (part_groups, torch_groups, makespan_groups, early_groups, wan_groups)


def main(arguments: Sequence[str]) -> int:
    options = options_of(__doc__, arguments)
    groups = [group for kind in KINDS for group in kind(quick=options.quick)]
    for why in sorted({group.cannot() for group in groups} - {""}):
        terminal().print(f"engine: {sum(len(g.asked) for g in groups if g.cannot() == why)} rows are left out: {why}")
    tasks = [task for group in groups if not group.cannot() for task in _tasks(group)]
    page = partial(engine_page, groups)
    return carry_out("engine", "The engine's bar", tasks, page, options, arguments, EXECUTING)


def _tasks(group: Group) -> list[Task]:
    """A task per quantity; the first that is measured measures the group."""
    shown: list[Callable[[str], None]] = []

    @cache
    def samples() -> Samples:
        return group.measure(shown[-1])

    def measure(one: Asked, setup: Setup, show: Callable[[str], None]) -> Result:
        shown.append(show)
        return one.result(samples(), now())

    def words(one: Asked, result: Result) -> str:
        assert isinstance(result, Speed)
        limits = f"must {one.must_words}, aim {one.aim_words}"
        return f"{result.spread.median:.4g} {result.unit} ({limits}): {one.verdict(result).replace('*', '')}"

    return [Task(one.key, Wanted(), partial(measure, one), partial(words, one)) for one in group.asked]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
