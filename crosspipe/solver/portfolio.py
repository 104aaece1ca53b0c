"""The schedules by name, and `solve`, the one way to get one: checked, re-timed and certified.

It decides nothing about orders itself; each name stands for a method in a module of its own.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterable

import msgspec

from crosspipe.errors import UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.schedule.order import require_size
from crosspipe.solver import exact
from crosspipe.solver.bounds import lower_bound
from crosspipe.solver.certify import Found, certified
from crosspipe.solver.request import Progress, Request
from crosspipe.solver.static import FIXED_ORDERS
from crosspipe.solver.zero_bubble import GENERATED_ORDERS


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule by name: the traversal it belongs to (None: any), one line of what it is, its family, its method.

    `family` is "static" (fixed order), "generated" (static, from the block times), "greedy", "exact" or "portfolio".
    """

    traversal: str | None
    doc: str
    family: str
    method: Callable[[Problem, Request], Found]


def _greedy(problem: Problem, request: Request) -> Found:
    from crosspipe.solver.greedy import cross_ud_sub  # compiles with numba

    return cross_ud_sub(problem, request.pieces)


def _static(name: str, doc: str) -> Entry:
    family, table = ("static", FIXED_ORDERS) if name in FIXED_ORDERS else ("generated", GENERATED_ORDERS)
    traversal, orders = table[name]
    return Entry(traversal=traversal, doc=doc, family=family, method=lambda p, _: Found(orders=orders(p)))


def _exact(traversal: str) -> Entry:
    return Entry(traversal=traversal, doc="searched, then proven with CP-SAT", family="exact", method=exact.search)


MOST_WORKERS = 1024

SCHEDULES: dict[str, Entry] = {
    "auto": Entry(
        traversal=None,
        doc="the best of all methods of the problem's traversal",
        family="portfolio",
        method=exact.search,
    ),
    "gpipe": _static("gpipe", "all F, then all fused B"),
    "1f1b": _static("1f1b", "one F, one fused B"),
    "zbh1": _static("zbh1", "1F1B with split backward, at the memory of 1F1B"),
    "interleaved_1f1b": _static("interleaved_1f1b", "1F1B over several chunks, fused B"),
    "zbh2": _static("zbh2", "1F1B with split backward, at up to twice its memory"),
    "zbv": _static("zbv", "there and back over the stages, at the memory of 1F1B"),
    "v_half": _static("v_half", "zbv at about half of its memory"),
    "v_min": _static("v_min", "zbv at about a third of its memory"),
    "cross_ud": _exact("ud"),
    "cross_wave": _exact("wave"),
    "cross_loop": _exact("loop"),
    "cross_ud_sub": Entry(traversal="ud", family="greedy", doc="greedy of the CrossPipe paper", method=_greedy),
}


def solve(
    problem: Problem,
    name: str = "auto",
    *,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    seed: int = 0,
    pieces: int = 8,
    hint: Schedule | Iterable[Schedule] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Schedule:
    """The schedule `name` (a key of `SCHEDULES`) for `problem`, valid, re-timed, with Certificate and Provenance.

    `time_limit_s` bounds searches; `workers` defaults to the CPUs this process may use, and with 1 the seed alone
    decides the result, unless the time limit cuts in; `pieces` is n_sub of `cross_ud_sub`; `hint` is one or more
    schedules of the same shape to start from (a neighbouring delay's, say); `progress` hears of every improvement. An
    interrupt (SIGINT) during a search ends it with the best so far.

    Raises UsageError for an unknown name, a schedule of another traversal, or an option that makes no sense;
    FieldError where the family does not allow the counts, or there are more than `MOST_BLOCKS` blocks; Infeasible where
    the schedule does not fit the memory.
    """
    started = time.monotonic()
    entry = SCHEDULES.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, SCHEDULES, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError("schedule", name, "no such schedule", f"{meant}use one of {', '.join(SCHEDULES)}")
    if entry.traversal not in (None, problem.traversal):
        fitting = [n for n, e in SCHEDULES.items() if e.traversal in (None, problem.traversal)]
        raise UsageError(
            "schedule",
            name,
            f"is a schedule of traversal {entry.traversal}, the problem's traversal is {problem.traversal}",
            f"make the problem with traversal {entry.traversal}, or use one of {', '.join(fitting)}",
        )
    if not time_limit_s > 0:
        raise UsageError("time_limit_s", time_limit_s, "leaves no time", "give seconds > 0")
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UsageError("workers", workers, "no such number of threads", f"use 1 to {MOST_WORKERS}")
    if not 0 <= seed < 2**31:
        raise UsageError("seed", seed, "the searches take other numbers", "use 0 to 2147483647")
    if pieces < 1:
        raise UsageError("pieces", pieces, "a block has at least one piece", "use 1 or more")
    hints = () if hint is None else (hint,) if isinstance(hint, Schedule) else tuple(hint)
    for one in hints:
        one.check_fits(problem)
    require_size(problem)
    problem.check_memory_floor()
    request = Request(
        bound=lower_bound(problem),
        started_s=started,
        time_limit_s=time_limit_s,
        workers=workers or usable_cpus(),
        seed=seed,
        pieces=pieces,
        hints=hints,
        progress=progress,
    )
    return certified(problem, name, entry.method(problem, request), request)


def usable_cpus() -> int:
    """CPUs this process may run on: the affinity mask where the system has one, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
