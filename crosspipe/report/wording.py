"""Numbers and names as a reader wants them: the same few formats in the terminal, in Markdown and on the page."""

from __future__ import annotations

import math

MISSING = "–"
NOTHING = 1e-9  # what is smaller is a rounding error, and zero


def number(value: float | None, unit: str = "") -> str:
    """About four significant digits (three of a small value), never an exponent; a dash where there is no value."""
    if value is None:
        return MISSING
    if abs(value) < NOTHING:
        return f"0 {unit}".rstrip()
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    if abs(value) < 0.01:
        digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f} {unit}".rstrip()


def percent(value: float | None) -> str:
    """A signed difference in percent."""
    return MISSING if value is None else f"{value:+.2f} %".replace("-", "−")


def scientific(value: float | None) -> str:
    """One decimal and an exponent, for errors that span decades."""
    return MISSING if value is None else f"{value:.1e}".replace("-", "−")


def gap(value: float | None) -> str:
    """A gap to the lower bound in percent; "optimal", said only where it is exactly zero."""
    if value is None:
        return MISSING
    if abs(value) < NOTHING:
        return "optimal"
    return f"{value:.2f} %" if value >= 0.01 else "< 0.01 %"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """A median with its interval, or alone where the samples are too few for one."""
    if value is None:
        return MISSING
    if low is None or high is None:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def size(size_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves at least one."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{number(value)} {unit}"


def duration(nanoseconds: float) -> str:
    """Nanoseconds in the unit that reads best."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(nanoseconds) >= factor:
            return f"{number(nanoseconds / factor)} {unit}"
    return f"{number(nanoseconds)} ns"


def joined(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
