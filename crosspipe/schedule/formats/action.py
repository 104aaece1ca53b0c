"""One cell of a pipelining CSV, as its reader and the exchange of its messages both know it."""

from __future__ import annotations

from typing import NamedTuple

from crosspipe.errors import FieldError


class Action(NamedTuple):
    """One action of a rank (row and column counted from 0): its name, our position, microbatch (None: of all)."""

    row: int
    column: int
    name: str
    position: int
    microbatch: int | None

    def __str__(self) -> str:
        return f"{self.position}{self.name}{'' if self.microbatch is None else self.microbatch}"

    @property
    def where(self) -> str:
        return f"row {self.row + 1}, column {self.column + 1}"

    def wrong(self, why: str, remedy: str) -> FieldError:
        """The error that this action is."""
        return FieldError(self.where, str(self), why, remedy)
