"""Speeds of the compiled parts at 64 x 128: blocks a second of the performance model, seconds of the greedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from support.instances import FORWARD_MS, INPUT_GRAD_MS, WEIGHT_GRAD_MS
from support.results import Speed, now

from crosspipe.problem import Problem
from crosspipe.problem.spread import spread
from crosspipe.schedule import kernel
from crosspipe.solver import solve
from crosspipe.solver.greedy import cross_ud_sub

STAGES, MICROBATCHES = 64, 128
LEAST_SAMPLES = 6  # fewer give no interval


class Bench(NamedTuple):
    """`prepare` gives what takes one sample in `unit`; the median must be at most `must`, or at least if `higher`."""

    key: str
    prepare: Callable[[], Callable[[], float]]
    unit: str
    must: float | None = None
    higher: bool = False

    def met_by(self, speed: Speed) -> bool | None:
        if self.must is None:
            return None
        return speed.spread.median >= self.must if self.higher else speed.spread.median <= self.must

    def must_words(self) -> str:
        return "–" if self.must is None else f"{'≥' if self.higher else '≤'} {self.must:g}"


def benches() -> Iterator[Bench]:
    """Every speed of the bar."""
    for traversal, order in (("ud", "zbh1"), ("wave", "zbv"), ("loop", "interleaved_1f1b")):
        yield Bench(f"model, {order}", partial(_kernel, traversal, order), "million blocks/s", 10, higher=True)
    yield Bench("greedy, n_sub 8, order and idealised plan", partial(_greedy, 8), "s", 0.1)


def measured(bench: Bench, budget_s: float = 3.0) -> Speed:
    """Samples for `budget_s`, after one that is not kept."""
    once = bench.prepare()
    once()
    samples: list[float] = []
    until = time.perf_counter() + budget_s
    while len(samples) < LEAST_SAMPLES or time.perf_counter() < until:
        samples.append(once())
    return Speed(key=bench.key, finished=now(), spread=spread(samples), unit=bench.unit)


def _problem(traversal: str) -> Problem:
    return Problem.uniform(
        traversal=traversal,
        stages=STAGES,
        microbatches=MICROBATCHES,
        sites=2,
        forward_ms=FORWARD_MS,
        input_grad_ms=INPUT_GRAD_MS,
        weight_grad_ms=WEIGHT_GRAD_MS,
        latency_ms=FORWARD_MS,
        serialisation_ms=FORWARD_MS,
        memory_microbatches=STAGES if traversal == "ud" else None,
    )


def _kernel(traversal: str, order: str) -> Callable[[], float]:
    problem = _problem(traversal)
    schedule = solve(problem, order)
    compiled, encoded = kernel.compile_problem(problem), kernel.encode(problem, schedule)
    blocks = sum(len(row) for row in schedule.orders)

    def once() -> float:
        began = time.perf_counter()
        kernel.evaluate(compiled, encoded)
        return blocks / (time.perf_counter() - began) / 1e6

    return once


def _greedy(pieces: int) -> Callable[[], float]:
    problem = _problem("ud")

    def once() -> float:
        began = time.perf_counter()
        cross_ud_sub(problem, pieces)
        return time.perf_counter() - began

    return once
