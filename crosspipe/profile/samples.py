"""The raw round trips of a link measurement as a Parquet file: one row each, warm-ups marked, nothing averaged away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crosspipe.profile.pingpong import Cell
from crosspipe.store.files import replacing

if TYPE_CHECKING:
    import polars as pl

FIELDS = ("transport", "source", "target", "size_bytes", "index", "warmup", "round_trip_ns")


def pack(cells: Iterable[Cell], transports: Sequence[str]) -> NDArray[np.int64]:
    """The cells as one matrix of integers, a row a round trip, columns as `FIELDS` (transport: its index)."""
    parts = [
        np.column_stack(
            [
                np.tile(
                    [transports.index(cell.transport), cell.source, cell.target, cell.size_bytes],
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

    return pl.DataFrame(
        {
            "transport": pl.Series([transports[number] for number in packed[:, 0]], dtype=pl.Categorical),
            "source": packed[:, 1].astype(np.int32),
            "target": packed[:, 2].astype(np.int32),
            "size_bytes": packed[:, 3],
            "index": packed[:, 4].astype(np.int32),
            "warmup": packed[:, 5].astype(bool),
            "round_trip_ns": packed[:, 6],
        }
    )


def write_samples(path: Path, table: pl.DataFrame) -> None:
    """Writes the table, whole or not at all."""
    with replacing(path) as temporary:
        table.write_parquet(temporary)


def one_way(table: pl.DataFrame) -> dict[tuple[str, int, int, int], NDArray[np.float64]]:
    """Half of every counted round trip in ns, by (transport, source, target, size_bytes), in the order measured."""
    import polars as pl

    keys = ["transport", "source", "target", "size_bytes"]
    counted = table.filter(~pl.col("warmup")).group_by(keys, maintain_order=True).agg(pl.col("round_trip_ns") / 2)
    return {tuple(row[:4]): np.array(row[4], dtype=float) for row in counted.rows()}
