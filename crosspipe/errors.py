"""The errors users see: one line that names the file, the field, the value and what would be right.

Every class carries the exit code of the command line: 1 means the thing asked about is wrong or failed, 2 means the
command itself was used wrongly. Nothing here prints; `crosspipe.cli` does.
"""

from __future__ import annotations

from pathlib import Path


class CrosspipeError(Exception):
    """Anything CrossPipe refuses to do, said in one line."""

    exit_code = 1


class FieldError(CrosspipeError, ValueError):
    """A field holds a value that cannot be used. (A ValueError too: msgspec then says at which place in a file.)

    Parameters: `field` dotted name as the user wrote it, `value` what stands there, `wrong` why it cannot be used,
    `remedy` what would be right, `file` where it was read (added later by the reader when unknown here).
    """

    def __init__(self, field: str, value: object, wrong: str, remedy: str, *, file: str | Path | None = None) -> None:
        self.field, self.value, self.wrong, self.remedy, self.file = field, value, wrong, remedy, file
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file is not None else ""
        return f"{where}{self.field} = {self.value!r}: {self.wrong}; {self.remedy}"


class UsageError(FieldError):
    """A `FieldError` in what the user typed: a name, an option, an override."""

    exit_code = 2


class ArtifactError(CrosspipeError):
    """A file cannot be read as what it should be: truncated, of a newer schema, or not of that type."""


class Infeasible(CrosspipeError):
    """No schedule of this kind fits the problem; names the stage, what it needs and its limit."""


class Deadlock(CrosspipeError):
    """The order can never finish. `cycle` lists, in words, who waits for whom."""

    def __init__(self, cycle: list[str]) -> None:
        self.cycle = cycle
        super().__init__("deadlock: " + "; ".join(cycle))


class StageFailed(CrosspipeError):
    """A campaign stage ended without its result; the message names the rank and shows the end of its log."""
