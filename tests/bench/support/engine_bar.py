"""What is asked of the engine, quantity by quantity, and the groups of quantities that one measurement gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from support.results import Speed

Show = Callable[[str], None]
Samples = Mapping[str, Sequence[float]]  # quantity -> samples


class Asked(NamedTuple):
    """A quantity: its median must be at most `must` and should be at most `aim` (at least, where `least`)."""

    section: str
    key: str
    unit: str
    must: float | None = None
    aim: float | None = None
    least: bool = False

    def verdict(self, speed: Speed) -> str:
        """In words."""
        if self.must is None:
            return "reported"
        reaches = [
            limit is not None and (speed.spread.median >= limit if self.least else speed.spread.median <= limit)
            for limit in (self.must, self.aim)
        ]
        if not reaches[0]:
            return "**missed**"
        return "aim met" if reaches[1] else "must met"

    def limit_words(self, limit: float | None) -> str:
        return "–" if limit is None else f"{'≥' if self.least else '≤'} {limit:g}"


class Group(NamedTuple):
    """Quantities that are measured together."""

    asked: tuple[Asked, ...]
    measure: Callable[[Show], Samples]
