"""Measures the engine's bar and writes it down: `python tests/bench/engine.py` (20 minutes; `--quick`: two).

It wants the machine for itself: what else runs makes blocks and messages late. Quantities that are measured together
are repeated together; the page shows the newest result of each.
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
from support.options import options_of
from support.results import Result, Speed, Wanted, now
from support.setup import DECIDING, Setup

from crosspipe.problem.spread import spread

EXECUTING = (*DECIDING, "model/*.py", "execute/*.py")  # sources that change a result


def main(arguments: Sequence[str]) -> int:
    options = options_of(__doc__, arguments)
    kinds = (part_groups, torch_groups, makespan_groups, early_groups)
    groups = [group for kind in kinds for group in kind(quick=options.quick)]
    tasks = [task for group in groups for task in _tasks(group)]
    asked = [one for group in groups for one in group.asked]
    return carry_out("engine", "The engine's bar", tasks, partial(engine_page, asked), options, arguments, EXECUTING)


def _tasks(group: Group) -> list[Task]:
    """A task per quantity; the first that is measured measures the group."""
    shown: list[Callable[[str], None]] = []

    @cache
    def samples() -> Samples:
        return group.measure(shown[-1])

    def measure(one: Asked, setup: Setup, show: Callable[[str], None]) -> Result:
        shown.append(show)
        return Speed(key=one.key, finished=now(), spread=spread(samples()[one.key]), unit=one.unit)

    def words(one: Asked, result: Result) -> str:
        assert isinstance(result, Speed)
        return f"{result.spread.median:.4g} {one.unit}: {one.verdict(result).replace('*', '')}"

    return [Task(one.key, Wanted(), partial(measure, one), partial(words, one)) for one in group.asked]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
