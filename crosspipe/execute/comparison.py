"""Predicted against measured, block by block and message by message, as one tidy table per point.

Both sides count from the agreed start of the iteration. For questions such as which block is late, and from where on;
the sums are in the RunRecord.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from crosspipe.execute.trace import Trace
from crosspipe.problem import Problem
from crosspipe.schedule import simulate
from crosspipe.schedule.order import Schedule
from crosspipe.store.files import replacing

COLUMNS = {
    "iteration": "UInt32",
    "event": "Categorical",  # "block" or "message"
    "stage": "UInt32",  # of a message: the one that sends it
    "position": "UInt32",
    "kind": "Categorical",
    "microbatch": "UInt32",
    "piece": "UInt32",
    "predicted_start_ns": "Int64",  # of a message: the end of its block
    "predicted_end_ns": "Int64",  # of a message: its arrival
    "start_ns": "Int64",
    "end_ns": "Int64",
    "raw_end_ns": "Int64",
    "late_ns": "Int64",  # beyond the anchor; the part of it that others saw is in raw_end_ns
}


def write_comparison(path: Path, problem: Problem, schedule: Schedule, runs: Sequence[Sequence[Trace]]) -> Path:
    """Writes the rows of `runs[i][rank]` to a Parquet file.

    An iteration that ran another order than `schedule` (after a swap) is compared with the prediction of that order.
    """
    import polars as pl

    rows = [row for traces in runs for row in compare(problem, schedule, traces)]
    frame = pl.DataFrame(rows, schema={name: getattr(pl, kind) for name, kind in COLUMNS.items()}, orient="row")
    with replacing(path) as temporary:
        frame.write_parquet(temporary)
    return path


def compare(problem: Problem, schedule: Schedule, traces: Sequence[Trace]) -> Iterator[tuple[Any, ...]]:
    """Rows of one iteration in the order of COLUMNS."""
    orders = tuple(tuple(b.block for b in trace.blocks) for trace in traces)
    if orders != schedule.orders:
        schedule = msgspec.structs.replace(schedule, orders=orders, messages={})
    predicted = simulate(problem, schedule)
    begin = traces[0].begin_ns
    for stage, (trace, row) in enumerate(zip(traces, predicted.blocks, strict=True)):
        for b, planned in zip(trace.blocks, row, strict=True):
            position = problem.position(stage, b.block.chunk)
            spans = (planned.start_ns, planned.end_ns, b.start_ns - begin, b.end_ns - begin, b.raw_end_ns - begin)
            names = (stage, position, b.block.kind, b.block.microbatch, b.block.piece)
            yield trace.index, "block", *names, *spans, max(0, b.lateness_ns)
    lives = {m.message: m for m in predicted.messages}
    for trace in traces:
        for m in trace.messages:
            planned = lives.get(m.message)
            if planned is None:
                continue
            kind, position, microbatch = m.message
            spans = (planned.ready_ns, planned.arrival_ns, m.ready_ns - begin, m.arrival_ns - begin)
            names = (problem.place(position)[0], position, kind, microbatch, 0)
            yield trace.index, "message", *names, *spans, m.raw_arrival_ns - begin, max(0, m.lateness_ns)
