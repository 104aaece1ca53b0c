"""Timelines in Parquet: one tidy row per block, message and memory step, units in the column names.

The columns are for analysis with any Parquet reader; what the rows cannot say (shape, sites, origin) stands as JSON in
the file's metadata, so that `read_timelines` gives back exactly what `write_timelines` took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from crosspipe.errors import ArtifactError
from crosspipe.schedule.order import Block, Message
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline
from crosspipe.store.files import replacing

if TYPE_CHECKING:
    import polars as pl

_METADATA = "crosspipe.timelines"
_COLUMNS = {
    "timeline": "UInt32",  # 0-based place in the list written
    "event": "Categorical",  # "block", "message" or "memory"
    "stage": "UInt32",  # of a message: None
    "position": "UInt32",  # of a message: where it is sent
    "kind": "Categorical",  # F, D, W, B; of a message also reduce, gather
    "chunk": "UInt32",
    "microbatch": "UInt32",
    "piece": "UInt32",
    "pieces": "UInt32",
    "wire": "Categorical",
    "ready_ns": "Int64",  # message: the block's end
    "start_ns": "Int64",  # block: start; message: start of service; memory: when it changes
    "served_ns": "Int64",  # message: its wire is free again
    "end_ns": "Int64",  # block: end; message: arrival
    "held_bytes": "Int64",  # memory: held from then on
}


class _Shape(msgspec.Struct, frozen=True):
    """What a Timeline says besides its events."""

    schema: int
    traversal: str
    stages: int
    chunks: int
    microbatches: int
    sites: tuple[int, ...]
    origin: str


def write_timelines(path: str | Path, timelines: Sequence[Timeline]) -> Path:
    """Writes all `timelines` to one Parquet file, whole or not at all. Times in ns, sizes in bytes."""
    import polars as pl

    path = Path(path)
    rows = [row for index, timeline in enumerate(timelines) for row in _rows(index, timeline)]
    frame = pl.DataFrame(rows, schema={name: getattr(pl, kind) for name, kind in _COLUMNS.items()}, orient="row")
    shapes = [_Shape(**{name: getattr(t, name) for name in _Shape.__struct_fields__}) for t in timelines]
    with replacing(path) as temporary:
        frame.write_parquet(temporary, metadata={_METADATA: msgspec.json.encode(shapes).decode()})
    return path


def read_timelines(path: str | Path) -> list[Timeline]:
    """The timelines of a file of `write_timelines`; ArtifactError if it is not one."""
    import polars as pl

    path = Path(path)
    try:
        metadata = pl.read_parquet_metadata(path)
        shapes = msgspec.json.decode(metadata[_METADATA], type=list[_Shape])
        frame = pl.read_parquet(path)
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; give a Parquet file of timelines") from None
    except (pl.exceptions.PolarsError, KeyError, msgspec.MsgspecError) as error:
        raise ArtifactError(f"{path}: is not a Parquet file of timelines ({error}); write it again") from None
    newest = next(f.default for f in msgspec.structs.fields(Timeline) if f.name == "schema")
    for shape in shapes:
        if shape.schema > newest:
            raise ArtifactError(
                f"{path}: schema = {shape.schema}: newer than the {newest} known here; upgrade crosspipe"
            )
    parts = dict(frame.partition_by("timeline", as_dict=True, include_key=False))
    return [_timeline(shape, parts.get((index,))) for index, shape in enumerate(shapes)]


def _rows(index: int, timeline: Timeline) -> Iterator[tuple[Any, ...]]:
    for stage, row in enumerate(timeline.blocks):
        for block, start, end in row:
            yield (
                index, "block", stage, timeline.position(stage, block.chunk), block.kind, block.chunk, block.microbatch,
                block.piece, block.pieces, None, None, start, None, end, None,
            )  # fmt: skip
    for message, wire, ready, start, served, arrival in timeline.messages:
        yield (
            index, "message", None, message.position, message.kind, None, message.microbatch,
            None, None, wire, ready, start, served, arrival, None,
        )  # fmt: skip
    for stage, steps in enumerate(timeline.memory):
        for time, held in steps:
            yield index, "memory", stage, None, None, None, None, None, None, None, None, time, None, None, held


def _timeline(shape: _Shape, frame: pl.DataFrame | None) -> Timeline:
    blocks: list[list[TimedBlock]] = [[] for _ in range(shape.stages)]
    messages: list[TimedMessage] = []
    memory: list[list[tuple[int, int]]] = [[] for _ in range(shape.stages)]
    for row in frame.iter_rows(named=True) if frame is not None else ():
        if row["event"] == "block":
            block = Block(row["kind"], row["chunk"], row["microbatch"], row["piece"], row["pieces"])
            blocks[row["stage"]].append(TimedBlock(block, row["start_ns"], row["end_ns"]))
        elif row["event"] == "message":
            message = Message(row["kind"], row["position"], row["microbatch"])
            times = (row["ready_ns"], row["start_ns"], row["served_ns"], row["end_ns"])
            messages.append(TimedMessage(message, row["wire"], *times))
        else:
            memory[row["stage"]].append((row["start_ns"], row["held_bytes"]))
    return Timeline(
        schema=shape.schema,
        traversal=shape.traversal,
        stages=shape.stages,
        chunks=shape.chunks,
        microbatches=shape.microbatches,
        sites=shape.sites,
        origin=shape.origin,
        blocks=tuple(tuple(row) for row in blocks),
        messages=tuple(messages),
        memory=tuple(tuple(steps) for steps in memory) if any(memory) else (),
    )
