"""The bar: what each instance must reach, what it should, and whether a result does.

Every schedule has to be valid, to re-time to the makespan it claims, and to be no worse than the best static schedule
that fits. What else is asked stands in the table below; where it has nothing, results are only reported.
"""

from __future__ import annotations

from typing import NamedTuple

from support.instances import FULL_LIMIT_S
from support.results import Cell


class Wanted(NamedTuple):
    """A gap of at most `gap` (0: proven optimal; None: any) within `within_s` seconds (None: within the limit), the
    first schedule after at most `first_s`."""

    gap: float | None = 0.0
    within_s: float | None = None
    first_s: float | None = None

    def met_by(self, cell: Cell) -> bool:
        in_time = (self.within_s is None or cell.wall_s <= self.within_s) and (
            self.first_s is None or cell.first_s <= self.first_s
        )
        close = self.gap is None or 0 < cell.makespan_ns <= cell.lower_bound_ns * (1 + self.gap)
        return in_time and close

    def __str__(self) -> str:
        parts = [] if self.first_s is None else [f"first in {self.first_s:g} s"]
        if self.gap is not None:
            close = "proved" if self.gap == 0 else f"gap ≤ {100 * self.gap:g} %"
            parts.append(close if self.within_s is None else f"{close} in {self.within_s:g} s")
        return ", ".join(parts)


class Bar(NamedTuple):
    """`must` and `aim` of one traversal of a family; `at` replaces `must` at some delays."""

    must: Wanted | None = None
    aim: Wanted | None = None
    at: tuple[tuple[str, Wanted], ...] = ()


REPORTED = Bar()
PROVED = Wanted()
LIMIT_8_UD = Bar(Wanted(0.035), PROVED, (("(0, 0)", PROVED), ("(0.25, 0.25)", PROVED)))
LIMIT_8_WAVE = Bar(Wanted(0.02), PROVED, (("(2, 2)", Wanted(0.05)),))
LARGE_UD, LARGE_WAVE = Bar(Wanted(0.0075, first_s=1), PROVED), Bar(Wanted(None, first_s=1))
BARS: dict[tuple[str, str], Bar] = {
    ("4x8, limit 4", "ud"): Bar(Wanted(within_s=5), PROVED),
    ("4x8, limit 4", "wave"): Bar(Wanted(0.03), PROVED),
    ("8x16, limit 8", "ud"): Bar(Wanted(within_s=30), Wanted(within_s=5)),
    ("8x16, limit 8", "wave"): Bar(Wanted(0.005), PROVED, (("(0.25, 2)", PROVED), ("(2, 2)", Wanted(0.035)))),
    ("8x32, limit 16", "ud"): Bar(Wanted(within_s=30), Wanted(within_s=5)),
    ("8x32, limit 16", "wave"): Bar(Wanted(within_s=30), Wanted(within_s=5)),
    ("8x32, limit 8", "ud"): LIMIT_8_UD,
    ("8x32, limit 8", "wave"): LIMIT_8_WAVE,
    ("8x32, limit 8, recomputation", "ud"): LIMIT_8_UD,
    ("8x32, limit 8, recomputation", "wave"): LIMIT_8_WAVE,
    ("16x32, limit 16", "ud"): Bar(PROVED, Wanted(within_s=15)),
    ("16x32, limit 16", "wave"): Bar(Wanted(0.03), Wanted(0.01)),
    ("32x64, limit 32", "ud"): LARGE_UD,
    ("32x64, limit 32", "wave"): LARGE_WAVE,
    ("64x128, limit 64", "ud"): LARGE_UD,
    ("64x128, limit 64", "wave"): LARGE_WAVE,
}
RANDOM_SHARE = 0.95  # of the random problems proved within their limit; the aim is all


class Verdict(NamedTuple):
    """What was asked of a cell, in words, and the judgement: `missed` is True, False, or None where nothing is asked
    or the run was too short to say."""

    must: str
    aim: str
    words: str
    missed: bool | None


def judge(cell: Cell, family: str, traversal: str, label: str) -> Verdict:
    """The verdict on one cell."""
    bar = BARS.get((family, traversal), REPORTED)
    must = dict(bar.at).get(label, bar.must)
    asked = str(must or "–"), str(bar.aim or "–")
    if cell.faults:
        return Verdict(*asked, "**invalid**", True)
    if cell.worse_than_static:
        return Verdict(*asked, "**worse than static**", True)
    if must is None:
        return Verdict(*asked, "reported", None)
    if must.met_by(cell):
        return Verdict(*asked, "aim met" if bar.aim is not None and bar.aim.met_by(cell) else "must met", False)
    needs_s = 0.0 if must.gap is None else must.within_s or FULL_LIMIT_S
    if cell.time_limit_s < needs_s:
        return Verdict(*asked, f"not judged in {cell.time_limit_s:g} s", None)
    return Verdict(*asked, "**missed**", True)
