"""Traversals: in which order a microbatch visits the (stage, chunk) pairs.

`ud` visits the stages once, `loop` goes round and round (chunks >= 2), `wave` goes there and back (2 chunks). A
*position* is the place in that walk; this file is the only one that knows the formulas.
"""

from __future__ import annotations

from typing import Literal, get_args

from crosspipe.errors import FieldError

Traversal = Literal["ud", "loop", "wave"]
TRAVERSALS: tuple[str, ...] = get_args(Traversal)


def check_traversal(traversal: str, stages: int, chunks: int) -> None:
    """Raises FieldError if `chunks` does not belong to `traversal` or a count is not positive."""
    if traversal not in TRAVERSALS:
        raise FieldError("traversal", traversal, "no such traversal", f"use one of {', '.join(TRAVERSALS)}")
    if stages < 1:
        raise FieldError("stages", stages, "a pipeline has at least one stage", "use 1 or more")
    allowed = {"ud": chunks == 1, "wave": chunks == 2, "loop": chunks >= 2}[traversal]
    if not allowed:
        right = {"ud": "exactly 1", "wave": "exactly 2", "loop": "2 or more"}[traversal]
        raise FieldError("chunks", chunks, f"does not fit traversal {traversal}", f"{traversal} has {right}")


def position_of(traversal: str, stages: int, stage: int, chunk: int) -> int:
    """Position of (stage, chunk), 0-based."""
    if traversal == "wave" and chunk == 1:
        return 2 * stages - 1 - stage
    return chunk * stages + stage


def place_of(traversal: str, stages: int, position: int) -> tuple[int, int]:
    """(stage, chunk) at a position; the inverse of `position_of`."""
    chunk, stage = divmod(position, stages)
    if traversal == "wave" and chunk == 1:
        stage = stages - 1 - stage
    return stage, chunk
