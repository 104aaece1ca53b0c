"""PyTorch pipelining's CSV: one row a rank, one action a cell, as `torch.distributed.pipelining` dumps and loads it.

A cell is `<stage><action><microbatch>`; PyTorch's stage is our position, its `I` is our D. PyTorch's own loader accepts
trailing junk, repeated blocks and exchanged receives; this one names row and column of each.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.problem.traversal import TRAVERSALS, place_of, position_of
from crosspipe.schedule.formats.action import Action
from crosspipe.schedule.formats.communication import check_communication, with_communication
from crosspipe.schedule.order import Block, Schedule

_ACTION = re.compile(r"([0-9]{1,6})(F|I|B|W|SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{0,7})")
_OVERLAP = re.compile(r"\(([^();]+);([^();]+)\)OVERLAP_F_B")
_BLOCKS = {"F": "F", "I": "D", "W": "W", "B": "B"}
_ACTIONS = {kind: action for action, kind in _BLOCKS.items()}
_SHARDING = ("UNSHARD", "RESHARD", "REDUCE_GRAD")  # of FSDP and DP; they carry no microbatch and no order of ours


def read_pipelining(path: Path) -> Schedule:
    """The Schedule in a pipelining CSV, with or without its sends and receives. See `parse_pipelining`."""
    try:
        return parse_pipelining(path.read_text(encoding="utf-8-sig"), name=path.stem)
    except FieldError as error:
        error.file = path
        raise
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); give an existing CSV file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError(f"{path}: is not a CSV of pipelining actions ({error}); save it as plain UTF-8") from error


def parse_pipelining(text: str, name: str = "") -> Schedule:
    """The Schedule that the CSV text states: stages are its rows; the traversal follows from who holds what.

    Empty cells are idle time and left out; an overlapped F and B become two blocks in that order; actions of sharding
    and reduction are recognised and left out. Sends and receives, where there are any, must be complete and meet.
    Raises FieldError naming row and column, Deadlock for sends and receives that never meet.
    """
    rows = [list(_actions(number, row)) for number, row in enumerate(csv.reader(io.StringIO(text), strict=True))]
    while rows and not rows[-1]:
        rows.pop()
    for number, row in enumerate(rows):
        if not row:
            raise FieldError(f"row {number + 1}", "", "a rank without actions", "give every rank its row")
    if not rows:
        raise FieldError("rows", 0, "the file holds no actions", "give one row a rank")
    _refuse_repeats(rows)
    homes = _homes(rows)
    traversal, chunks = _traversal(homes, len(rows))
    computed = [[a for a in row if a.name in _BLOCKS] for row in rows]
    if any(a.name.startswith(("SEND", "RECV")) for row in rows for a in row):
        check_communication(rows, homes)
    orders = tuple(
        tuple(Block(_BLOCKS[a.name], place_of(traversal, len(rows), a.position)[1], a.microbatch or 0) for a in row)
        for row in computed
    )
    return Schedule(
        name=name,
        traversal=traversal,
        stages=len(rows),
        chunks=chunks,
        microbatches=1 + max(b.microbatch for row in orders for b in row),
        orders=orders,
    )


def pipelining_csv(schedule: Schedule, *, communication: bool = False) -> str:
    """The Schedule as a pipelining CSV that PyTorch loads: `format="compute_only"`, or with `communication` its sends
    and receives for `format="compute_comms"`.

    A listed message order is not part of the format: PyTorch sends when a block ends. Raises FieldError for W in
    pieces, which PyTorch does not know, and Deadlock where `communication` finds that the order cannot run.
    """
    rows = []
    for stage, order in enumerate(schedule.orders):
        row = []
        for column, block in enumerate(order):
            if block.pieces != 1:
                field = f"orders[{stage}][{column}]"
                raise FieldError(field, str(block), "PyTorch knows no pieces of W", "solve with weight_grad_pieces = 1")
            position = position_of(schedule.traversal, schedule.stages, stage, block.chunk)
            row.append(Action(stage, column, _ACTIONS[block.kind], position, block.microbatch))
        rows.append(row)
    if communication:
        homes = [place_of(schedule.traversal, schedule.stages, k)[0] for k in range(schedule.stages * schedule.chunks)]
        rows = with_communication(rows, homes)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([str(action) for action in row] for row in rows)
    return out.getvalue()


def _actions(row: int, cells: list[str]) -> Iterator[Action]:
    """The actions of one row; FieldError for a cell that is none."""
    for column, cell in enumerate(cells):
        text = cell.strip()
        if not text:
            continue
        overlapped = _OVERLAP.fullmatch(text)
        for part in overlapped.groups() if overlapped else (text,):
            match = _ACTION.fullmatch(part.strip())
            needs_microbatch = match is not None and match[2] not in _SHARDING
            if match is None or needs_microbatch != bool(match[3]) or (overlapped and match[2] not in _BLOCKS):
                raise FieldError(
                    f"row {row + 1}, column {column + 1}",
                    cell,
                    "is no pipelining action",
                    "write <stage><F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B><microbatch>, <stage><UNSHARD|RESHARD|"
                    "REDUCE_GRAD> or (<F>;<B>)OVERLAP_F_B",
                )
            yield Action(row, column, match[2], int(match[1]), int(match[3]) if match[3] else None)


def _refuse_repeats(rows: list[list[Action]]) -> None:
    """No block and no message may stand twice, on whichever rank; B does the work of I and of W."""
    seen: dict[tuple[str, int, int], Action] = {}
    for action in (a for row in rows for a in row if a.microbatch is not None):
        for work in ("I", "W") if action.name == "B" else (action.name,):
            first = seen.setdefault((work, action.position, action.microbatch or 0), action)
            if first is not action:
                raise action.wrong(f"{first} at {first.where} has done this already", "list each action once")


def _homes(rows: list[list[Action]]) -> list[int]:
    """The rank of each position; FieldError where a position has two or none."""
    home: dict[int, Action] = {}
    for action in (a for row in rows for a in row):
        first = home.setdefault(action.position, action)
        if first.row != action.row:
            raise action.wrong(
                f"stage {action.position} is on rank {first.row} too ({first} at {first.where})", "keep it on one rank"
            )
    missing = next((k for k in range(max(home) + 1) if k not in home), None)
    if missing is not None:
        raise FieldError("stages", max(home) + 1, f"no rank has an action of stage {missing}", "number stages from 0")
    return [home[k].row for k in range(len(home))]


def _traversal(homes: list[int], ranks: int) -> tuple[str, int]:
    """(traversal, chunks) that puts position k on rank `homes[k]`."""
    chunks, rest = divmod(len(homes), ranks)
    if rest:
        raise FieldError("stages", len(homes), f"cannot be shared evenly by {ranks} ranks", "give each rank as many")
    fitting = {"ud": chunks == 1, "loop": chunks >= 2, "wave": chunks == 2}
    for traversal in TRAVERSALS:
        if fitting[traversal] and all(place_of(traversal, ranks, k)[0] == rank for k, rank in enumerate(homes)):
            return traversal, chunks
    known = "in order (ud), round and round (loop) or there and back (wave)"
    raise FieldError("stages", homes, "ranks of stages 0, 1, … are those of no traversal", f"place them {known}")
