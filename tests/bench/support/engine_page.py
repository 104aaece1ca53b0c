"""The page of the engine's bar: which bars are missed, a table per section, and what could not be measured."""

from __future__ import annotations

from collections.abc import Sequence

from support.driver import Found
from support.engine_bar import Asked, Group
from support.page import interval_words, table
from support.results import Speed

SECTIONS = {
    "Makespan": (
        "Four ranks on this machine over gloo, eight microbatches, blocks paced at 20 ms, two sites, hops inside a "
        "site and links across emulated: (T_lat, T_bw) / T_F across, and 0.07 T_F inside, which is what a message of "
        "the paper's M70 takes there over one 200 Gbit/s port. Off the "
        "prediction: |measured / predicted − 1| of the anchored makespan of an iteration, and the same with the "
        "makespan that the raw durations give without any anchor. Late: blocks and messages of all iterations that "
        "missed their anchor by more than 0.5 ms. Real mathematics: of the paced block time; a short run before "
        "each says how long the sequences must be for it."
    ),
    "Emulated delay": (
        "Two processes over gloo, receives posted ahead; |moment the receiver went on − moment it should have|, rows "
        "per delay. Computing: a thread of each process multiplies matrices meanwhile. A message whose real transfer "
        "takes more than two thirds of its delay cannot be relied on to keep it: such ones are late, counted (*late*), "
        "and no part of the error. Where most are, by how much all were late is reported in its place."
    ),
    "Engine": "Cost: empty blocks, four ranks in one process that take turns. Memory: a decoder stage, B = 4.",
    "Against torch": "The same modules, batches and gloo group, iterations in turn; a median below 1 is ours.",
    "Early receives": (
        "Static schedules, blocks of the large model at half their time (19, 23 and 10.5 ms): makespan with receives "
        "posted when used over makespan with receives posted ahead of their send, both in turn. An emulated link moves "
        "no byte before its receive is posted."
    ),
    "Shaped TCP": (
        "A link that is not built from the model: real TCP between two network namespaces, joined by a relay that "
        "delays (20 ± 2 ms one way), paces (100 Mbit/s) and drops; congestion control cubic, and a connection keeps "
        "its window when idle (tcp_slow_start_after_idle = 0). Nothing is injected. The link profiler measured it "
        "first, the schedules are planned with what it found. Four ranks, two sites, eight microbatches, blocks paced "
        "at 40 ms, messages of 128 KiB. Off the prediction: measured / predicted − 1 of the makespan, with its sign. "
        "Gain: time saved against the static schedule that was fastest here. Where the rate falls in the run, the run "
        "sees it in its own messages, searches again and swaps (`run.replan_above`)."
    ),
}


def engine_page(groups: Sequence[Group], found: Found) -> list[str]:
    """The parts of the page; quantities that were not measured are left out of the tables, and counted at the end."""
    asked = [one for group in groups for one in group.asked]
    parts, judged = [], {one.key: one.verdict(_speed(found, one)) for one in asked if one.key in found}
    for section, words in SECTIONS.items():
        rows = [_row(one, _speed(found, one)) for one in asked if one.section == section and one.key in found]
        if rows:
            heads = ["what", "unit", "value", "95 % interval", "samples", "must", "aim", "verdict"]
            parts.append(f"## {section}\n\n{words}\n\n" + table(heads, rows, text_columns=2))
    return [_summary(judged), *parts, *_not_measured(groups, found)]


def _summary(judged: dict[str, str]) -> str:
    """How many bars are met, and which are not."""
    limited = {key: verdict for key, verdict in judged.items() if verdict != "reported"}
    missed = [key for key, verdict in limited.items() if verdict == "**missed**"]
    lines = [
        f"{len(limited) - len(missed)} of {len(limited)} bars are met, {len(judged) - len(limited)} rows reported."
    ]
    short = [key for key, verdict in limited.items() if verdict in ("must met", "aim missed")]
    for keys, words in ((missed, "Missed"), (short, "Short of the aim")):
        if keys:
            lines.append(f"{words}:\n\n" + "\n".join(f"- {key}" for key in keys))
    lines.append(
        "A value is a median, or what its row says. *Each* in a bar: the far end of the interval is judged, not the "
        "median alone."
    )
    return "## Bars\n\n" + "\n\n".join(lines)


def _row(one: Asked, speed: Speed) -> list[str]:
    limits = [one.must_words, one.aim_words] if speed.unit == one.unit else ["–", "–"]
    return [one.key, speed.unit, *interval_words(speed.spread), *limits, one.verdict(speed)]


def _not_measured(groups: Sequence[Group], found: Found) -> list[str]:
    lines = []
    for section in SECTIONS:
        missing = [(one, g) for g in groups for one in g.asked if one.section == section and one.key not in found]
        reasons = sorted({why for _, group in missing if (why := group.cannot())})
        if missing:
            lines.append(f"- {section}: {len(missing)} rows{''.join(f'; {reason}' for reason in reasons)}")
    return ["## Not measured\n\n" + "\n".join(lines)] if lines else []


def _speed(found: Found, one: Asked) -> Speed:
    speed = found[one.key][1]
    assert isinstance(speed, Speed)
    return speed
