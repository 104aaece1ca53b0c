"""Measures the scheduler's bar and writes it down: `python tests/bench/scheduler.py` (an hour; `--quick`: minutes).

Every result is saved at once, so an interrupted run goes on, and only what new sources, another machine or other
options ask for is measured again. The page shows the newest result of each search and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from support.bar import judge
from support.driver import Task, carry_out
from support.instances import Instance, all_instances, quick_instances
from support.measure import measure
from support.options import options_of
from support.page import percent, seconds
from support.results import Cell, Result, Speed, Wanted
from support.scheduler_page import scheduler_page
from support.speeds import Bench, benches, measured


def main(arguments: Sequence[str]) -> int:
    options = options_of(__doc__, arguments)
    instances = list(quick_instances() if options.quick else all_instances())
    if options.time_limit is not None:
        instances = [instance._replace(time_limit_s=options.time_limit) for instance in instances]
    speeds = list(benches())
    tasks = [*map(_speed_task, speeds), *map(_search_task, instances)]
    page = partial(scheduler_page, instances, speeds)
    return carry_out("scheduler", "The scheduler's bar", tasks, page, options, arguments)


def _speed_task(bench: Bench) -> Task:
    def words(result: Result) -> str:
        assert isinstance(result, Speed)
        return f"{result.spread.median:.4g} {bench.unit} (must {bench.must_words()})"

    return Task(bench.key, Wanted(), lambda setup, show: measured(bench), words)


def _search_task(instance: Instance) -> Task:
    def words(result: Result) -> str:
        assert isinstance(result, Cell)
        verdict = judge(result, instance.family, instance.traversal, instance.label)
        reached = f"{result.makespan_ns / 1e6:.2f} ms, gap {percent(result.gap)}, {seconds(result.wall_s)} s"
        return f"{reached}: {verdict.words.replace('*', '')}"

    wanted = Wanted(instance.problem.digest(), instance.time_limit_s)
    return Task(instance.key, wanted, partial(measure, instance), words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
