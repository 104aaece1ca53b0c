"""The page of the engine's bar: a table per section, what was missed at the end."""

from __future__ import annotations

from collections.abc import Sequence

from support.driver import Found
from support.engine_bar import Asked
from support.page import interval_words, table
from support.results import Speed

SECTIONS = {
    "Makespan": (
        "Four ranks on this machine over gloo, eight microbatches, blocks paced at 20 ms, two sites, links emulated; "
        "(T_lat, T_bw) / T_F. Values are per iteration: |measured / predicted − 1| of the anchored makespan, the same "
        "with the makespan that the raw durations give without any anchor, the shares of blocks and messages that "
        "missed their anchor by more than 0.5 ms, and how much of the paced block time was real mathematics."
    ),
    "Emulated delay": (
        "Two processes over gloo, delays of 1, 3, 10, 30 and 100 ms, receives posted ahead; |moment the receiver went "
        "on − moment it should have| over all delays of at least 1.5 times the real transfer. Computing: a thread of "
        "each process multiplies matrices meanwhile."
    ),
    "Engine": "Cost: empty blocks, four ranks in one process that take turns. Memory: a decoder stage, B = 4.",
    "Against torch": "The same modules, batches and gloo group, iterations in turn; a median below 1 is ours.",
    "Early receives": (
        "Static schedules as in the first table: makespan with receives posted when used over makespan with receives "
        "posted ahead of their send. An emulated link moves no byte before its receive is posted."
    ),
}


def engine_page(asked: Sequence[Asked], found: Found) -> list[str]:
    """The parts of the page; quantities that were not measured are left out."""
    parts, missed = [], []
    for section, words in SECTIONS.items():
        rows = []
        for one in asked:
            if one.section != section or one.key not in found:
                continue
            speed = found[one.key][1]
            assert isinstance(speed, Speed)
            verdict = one.verdict(speed)
            limits = [one.limit_words(one.must), one.limit_words(one.aim)]
            rows.append([one.key, one.unit, *interval_words(speed.spread), *limits, verdict])
            if verdict == "**missed**":
                missed.append(one.key)
        if rows:
            heads = ["what", "unit", "median", "95 % interval", "samples", "must", "aim", "verdict"]
            parts.append(f"## {section}\n\n{words}\n\n" + table(heads, rows, text_columns=2))
    lines = "\n".join(f"- {key}" for key in missed) or "None."
    return [*parts, f"## Missed\n\n{lines}"]
