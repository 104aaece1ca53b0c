"""What every picture of a Timeline has in common: colours, shades, time units, ticks and rows.

It knows no drawing library. Colours are those of Okabe and Ito, told apart with any colour vision; a chunk is a shade.
Kinds are told apart without colour too: D has a dark upper edge, W a dark lower one, and B, which is both, has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crosspipe.problem.traversal import place_of
from crosspipe.schedule.timeline import TimedBlock, Timeline

KIND_COLOURS = {"F": "#56B4E9", "D": "#E69F00", "W": "#009E73", "B": "#CC79A7"}
EXCHANGE_COLOUR = "#808080"  # of what replicas send one another
KIND_NAMES = {"F": "forward", "D": "input gradient", "W": "weight gradient", "B": "backward (D and W)"}
KIND_EDGES = {"F": (), "D": ("upper",), "W": ("lower",), "B": ("upper", "lower")}
EDGE = 0.12  # of a bar's height
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


class Bar(NamedTuple):
    """One block to draw; times in ns since the timeline's first event."""

    stage: int
    start_ns: int
    end_ns: int
    colour: str
    ink: str  # for a label on it
    timed: TimedBlock


class Line(NamedTuple):
    """One message between sites, from the sender's row when it is ready to the receiver's when it arrives."""

    source: int
    start_ns: int
    target: int
    end_ns: int


def bars(timeline: Timeline) -> list[Bar]:
    """Every block of a timeline."""
    zero = timeline.start_ns
    found = []
    for stage, row in enumerate(timeline.blocks):
        for timed in row:
            colour = shade(timed.block.kind, timed.block.chunk, timeline.chunks)
            found.append(Bar(stage, timed.start_ns - zero, timed.end_ns - zero, colour, ink_on(colour), timed))
    return found


def lines(timeline: Timeline) -> list[Line]:
    """Every message that crosses sites."""
    zero = timeline.start_ns
    found = []
    for timed in timeline.messages:
        if timeline.crosses_sites(timed.message):
            position = timed.message.position
            source = place_of(timeline.traversal, timeline.stages, position)[0]
            target = place_of(timeline.traversal, timeline.stages, position + (1 if timed.message.kind == "F" else -1))[
                0
            ]
            found.append(Line(source, timed.ready_ns - zero, target, timed.arrival_ns - zero))
    return found


def exchanges(timeline: Timeline) -> list[tuple[int, int, int]]:
    """(stage, start, end) of every gather and reduction of replicas, in ns since the first event."""
    zero = timeline.start_ns
    return [
        (place_of(timeline.traversal, timeline.stages, m.message.position)[0], m.ready_ns - zero, m.arrival_ns - zero)
        for m in timeline.messages
        if m.message.kind in ("gather", "reduce")
    ]


def shade(kind: str, chunk: int, chunks: int) -> str:
    """The colour of a kind, lighter with every chunk: "#rrggbb"."""
    towards_white = 0.0 if chunks == 1 else 0.6 * chunk / (chunks - 1)
    red, green, blue = _channels(KIND_COLOURS[kind])
    mixed = (round(c + (255 - c) * towards_white) for c in (red, green, blue))
    return "#" + "".join(f"{c:02x}" for c in mixed)


def label(bar: Bar, room: float) -> str:
    """What stands on a bar with room for so many digits: kind and microbatch, the microbatch alone, or nothing."""
    block = bar.timed.block
    for text in (f"{block.kind}{block.microbatch}", str(block.microbatch)):
        if room >= len(text):
            return text
    return ""


def ink_on(colour: str) -> str:
    """Black or white, whichever contrasts more with `colour` (relative luminance of WCAG 2)."""
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in _channels(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def time_unit(longest_ns: int) -> tuple[int, str]:
    """(ns per unit, its name) in which `longest_ns` is a readable number."""
    return next(((size, name) for size, name in _UNITS if longest_ns >= size), _UNITS[-1])


def time_text(ns: int) -> str:
    """A duration in words, four significant digits: "915 ms", "1.029 s"."""
    size, name = time_unit(abs(ns))
    return f"{ns / size:.4g} {name}"


def bytes_text(count: int) -> str:
    """A size in words, four significant digits: "12.5 MiB", "300 bytes"."""
    size, name = next(
        ((2**p, unit) for p, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if count >= 2**p), (1, "bytes")
    )
    return f"{count / size:.4g} {name}"


def title(heading: str, timeline: Timeline) -> str:
    """What stands over a timeline: its heading, where its times come from, its makespan."""
    origin = "" if heading in ("", timeline.origin) else f" ({timeline.origin})"
    return f"{heading or timeline.origin}{origin}: {time_text(timeline.makespan_ns)}"


def ticks(longest_ns: int, about: int = 8) -> list[int]:
    """Round times from 0 up to `longest_ns`, about so many: steps of 1, 2 or 5 times a power of ten ns."""
    step = 1
    while longest_ns / step > about:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, longest_ns + 1, step))


def longest_ns(timelines: Mapping[str, Timeline]) -> int:
    """The end of the common time axis."""
    return max([1, *(t.makespan_ns for t in timelines.values())])


def row_places(sites: Sequence[int], height: float, gap: float) -> list[float]:
    """Top of each stage's row; a gap parts neighbouring stages of different sites."""
    tops, top = [], 0.0
    for stage, site in enumerate(sites):
        if stage and sites[stage - 1] != site:
            top += gap
        tops.append(top)
        top += height
    return tops
