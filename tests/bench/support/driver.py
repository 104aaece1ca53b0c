"""Carries a benchmark out: skips what stands, saves every result at once, ends with the page.

A script says what there is to measure (`Task`) and how its page reads; options, resuming, progress and Ctrl-C are here.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from support.options import terminal
from support.page import measured_with, write
from support.results import Result, Results, Wanted
from support.setup import DECIDING, Setup, this_setup

QUICK = (
    "> **A quick run: few, small problems and short limits. It shows that the benchmark works, not what is reached.**"
)
Found = Mapping[str, tuple[Setup, Result]]  # the newest result of each key, and what it was measured with


class Task(NamedTuple):
    """One thing to measure. `measure` gets the set-up and a function that shows in words where it stands."""

    key: str
    wanted: Wanted
    measure: Callable[[Setup, Callable[[str], None]], Result]
    words: Callable[[Result], str]


def carry_out(
    name: str,
    title: str,
    tasks: Sequence[Task],
    page: Callable[[Found], list[str]],
    options: argparse.Namespace,
    arguments: Sequence[str],
    deciding: Sequence[str] = DECIDING,
) -> int:
    """Measures what does not stand yet into `name`.jsonl and writes `name`.md; the exit code.

    A result stands as long as the sources that match `deciding` do.
    """
    wanted = {task.key: task.wanted for task in tasks}
    results = Results(options.out / f"{name}.jsonl")
    setup = this_setup(options.workers, options.seed, deciding)
    done = results.done(wanted, setup)
    todo = [task for task in tasks if task.key not in done and options.only.search(task.key)]
    console = terminal()
    longest_min = sum(task.wanted.time_limit_s or 0 for task in todo) / 60
    console.print(
        f"{name}: {len(done)} of {len(tasks)} stand, {len(todo)} to go, searches {longest_min:.0f} min at most"
    )
    if options.list:
        print("\n".join(task.key for task in todo))
        return 0
    interrupted = False
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    try:
        with Progress(*columns, console=console) as bar, interrupts() as pressed:
            shown = bar.add_task("", total=len(todo))
            for task in todo:

                def show(words: str, key: str = task.key) -> None:
                    bar.update(shown, description=f"{key}: {words}")

                bar.update(shown, description=task.key)
                result = task.measure(setup, show)
                if pressed():  # what a search returns then had less than its time
                    raise KeyboardInterrupt
                results.add(setup, result)
                console.print(f"{task.key}: {task.words(result)}")
                bar.advance(shown)
    except KeyboardInterrupt:
        interrupted = True
    found = results.newest(wanted)
    written = options.out / f"{name}.md"
    made = measured_with(found.values(), ["python", f"tests/bench/{name}.py", *arguments])
    write(written, f"# {title}", QUICK if options.quick else "", made, *page(found))
    console.print(f"{written}{' (interrupted; call again to go on)' if interrupted else ''}")
    return 130 if interrupted else 0


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Gives what says whether Ctrl-C was pressed, also where a search took it as its own end and returned its best.

    A wake-up descriptor hears of signals whoever handles them.
    """
    heard, told = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told)

    def pressed() -> bool:
        try:
            return signal.SIGINT in os.read(heard, 64)
        except BlockingIOError:
            return False

    try:
        yield pressed
    finally:
        signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(told)
