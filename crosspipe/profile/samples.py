"""The raw round trips of a link measurement as a Parquet file: one row each, warm-ups marked, nothing averaged away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crosspipe.profile.pingpong import PATTERNS, PING_PONG, Cell
from crosspipe.store.files import replacing

if TYPE_CHECKING:
    import polars as pl

FIELDS = ("pattern", "window", "transport", "source", "target", "size_bytes", "index", "warmup", "round_trip_ns")
Windows = dict[tuple[str, str, int, int, int, int], NDArray[np.float64]]
"""By (pattern, transport, source, target, size_bytes, window): what each counted window took, in ns."""


def pack(cells: Iterable[Cell], transports: Sequence[str]) -> NDArray[np.int64]:
    """The cells as one matrix of integers, a row a round trip, columns as `FIELDS`; names as numbers."""
    parts = [
        np.column_stack(
            [
                np.tile(
                    [
                        PATTERNS.index(cell.pattern.name),
                        cell.pattern.window,
                        transports.index(cell.transport),
                        cell.source,
                        cell.target,
                        cell.size_bytes,
                    ],
                    (len(cell.round_trip_ns), 1),
                ),
                np.arange(len(cell.round_trip_ns)),
                cell.warmup,
                cell.round_trip_ns,
            ]
        )
        for cell in cells
    ]
    return np.concatenate([np.empty((0, len(FIELDS)), dtype=np.int64), *parts]).astype(np.int64)


def frame(packed: NDArray[np.int64], transports: Sequence[str]) -> pl.DataFrame:
    """Packed cells as a table with `FIELDS` as columns, in the order measured."""
    import polars as pl

    pattern, window, transport, source, target, size, index, warmup, round_trip = packed.T
    return pl.DataFrame(
        {
            "pattern": pl.Series([PATTERNS[number] for number in pattern], dtype=pl.Categorical),
            "window": window.astype(np.int32),
            "transport": pl.Series([transports[number] for number in transport], dtype=pl.Categorical),
            "source": source.astype(np.int32),
            "target": target.astype(np.int32),
            "size_bytes": size,
            "index": index.astype(np.int32),
            "warmup": warmup.astype(bool),
            "round_trip_ns": round_trip,
        }
    )


def write_samples(path: Path, table: pl.DataFrame) -> None:
    """Writes the table, whole or not at all."""
    with replacing(path) as temporary:
        table.write_parquet(temporary)


def one_way(table: pl.DataFrame) -> dict[tuple[str, int, int, int], NDArray[np.float64]]:
    """Half of every counted ping-pong in ns, by (transport, source, target, size_bytes), in the order measured."""
    import polars as pl

    keys = ["transport", "source", "target", "size_bytes"]
    halves = table.filter((pl.col("pattern") == PING_PONG) & ~pl.col("warmup"))
    grouped = halves.group_by(keys, maintain_order=True).agg(pl.col("round_trip_ns") / 2)
    return {tuple(row[:4]): np.array(row[4], dtype=float) for row in grouped.rows()}


def windows(table: pl.DataFrame) -> Windows:
    """Every counted window in ns, in the order measured."""
    import polars as pl

    keys = ["pattern", "transport", "source", "target", "size_bytes", "window"]
    counted = table.filter((pl.col("pattern") != PING_PONG) & ~pl.col("warmup"))
    grouped = counted.group_by(keys, maintain_order=True).agg(pl.col("round_trip_ns"))
    return {tuple(row[:6]): np.array(row[6], dtype=float) for row in grouped.rows()}
