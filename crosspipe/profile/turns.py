"""The turns of a link measurement: which pairs play when, over which transport, and how long each size may take.

A turn's time is divided among its parts (ping-pongs and windows, each way), and a part's among its sizes; what one does
not use, those after it get. So the whole ends in time, and what did not fit is skipped and named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from crosspipe.profile.link_options import Options
from crosspipe.profile.link_table import run_transport
from crosspipe.profile.pingpong import (
    ONE_WAY,
    PING_PONG,
    SINGLE,
    TOGETHER,
    Allowance,
    Cell,
    Channel,
    Control,
    Pattern,
    Skipped,
    initiate,
    respond,
)
from crosspipe.profile.places import Place, cores
from crosspipe.profile.rounds import Pair, Round, quiet_rounds, rounds
from crosspipe.profile.streams import crossings, patterns, window_of

TOGETHER_S = 0.5  # pairs that are to disturb one another need some time side by side
OF_JOB = 0.8  # of what a job has left: the rest is for fitting and writing


class Turn(NamedTuple):
    """What happens at once: pairs that share no end, each on its own or all to load the same wire."""

    transport: str
    pairs: Round
    together: bool = False

    def __str__(self) -> str:
        who = " ".join(f"{source}-{target}" for source, target in self.pairs)
        return f"{self.transport} {who}{' together' if self.together else ''}"


def turns_of(options: Options, places: Sequence[Place]) -> list[Turn]:
    """All pairs over all transports, those inside a site first: what they leave of the time is for longer links."""
    sites = [place.site for place in places]
    plan = quiet_rounds(rounds(len(places)), [place.machine for place in places], cores(places), sites)
    turns = [Turn(transport, pairs) for transport in options.transports for pairs in plan]
    turns.sort(key=lambda turn: any(sites[source] != sites[target] for source, target in turn.pairs))
    if options.stream_sizes_bytes:
        turns += [Turn(run_transport(options.transports), pairs, together=True) for pairs in crossings(sites)]
    return turns


def job_limit_s(environ: Mapping[str, str], now_s: float) -> float:
    """What a measurement may take of the Slurm job that it runs in; infinite where there is none, or no end is said."""
    end = environ.get("SLURM_JOB_END_TIME", "")
    return max(1.0, OF_JOB * (int(end) - now_s)) if end.isdecimal() and int(end) > 0 else math.inf


def play(
    turn: Turn,
    channel: Channel,
    control: Control,
    rank: int,
    options: Options,
    allowed: Allowance,
    before: Sequence[Cell] = (),
) -> list[Cell]:
    """This rank's part of a turn, within `allowed` in all: nothing if it rests. Returns what it initiated.

    `before` is what it initiated in earlier turns: pairs together send the windows that they sent alone.
    """
    for pair in turn.pairs:
        if rank in pair:
            if turn.together:
                return _together(pair, channel, control, rank, options, allowed, before)
            return _alone(pair, channel, control, rank, options, allowed)
    return []


def skipped_of(cells: Sequence[Cell]) -> list[Skipped]:
    """The sizes that were skipped."""
    return [Skipped(c.pattern.name, c.transport, c.source, c.target, c.size_bytes) for c in cells if c.skipped]


def _alone(
    pair: Pair, channel: Channel, control: Control, rank: int, options: Options, allowed: Allowance
) -> list[Cell]:
    """Both directions, every size in ascending order; then the windows, the largest messages first."""
    directions = (pair, pair[::-1])
    parts = [[(*ends, size, PING_PONG) for size in options.sizes_bytes] for ends in directions]
    if options.stream_sizes_bytes:
        largest_first = options.stream_sizes_bytes[::-1]
        parts += [[(*ends, size, name) for size in largest_first for name in patterns(*ends)] for ends in directions]
    start, cells = time.monotonic(), list[Cell]()
    for number, part in enumerate(parts):
        spent_s = time.monotonic() - start
        budget_s, limit_s = ((whole_s - spent_s) / (len(parts) - number) for whole_s in allowed)
        begun = time.monotonic()
        for place, (source, target, size, name) in enumerate(part):
            if rank != source:
                window = 1 if name == PING_PONG else control.hear(source)
                respond(channel, control, source, size, Pattern(name, window))
                continue
            pattern = SINGLE
            if name != PING_PONG:
                pattern = Pattern(name, window_of(size, _held_bytes(cells)))
                control.tell(target, pattern.window)
            used_s = time.monotonic() - begun
            share = Allowance((budget_s - used_s) / (len(part) - place), limit_s - used_s)
            if pattern == SINGLE and size == options.sizes_bytes[0]:  # a pair without any has no link
                share = Allowance(share.budget_s)
            expected_ns = _expected_ns(cells, size, pattern)
            cells.append(initiate(channel, control, source, target, size, share, options.rule, pattern, expected_ns))
    return cells


def _round_trips_ns(cells: Sequence[Cell]) -> dict[int, float]:
    """The fastest ping-pong of each size so far, in ascending order of size."""
    return {c.size_bytes: float(min(c.round_trip_ns)) for c in cells if c.pattern == SINGLE and len(c.round_trip_ns)}


def _ns_per_byte(trips: Mapping[int, float], up_to: int) -> float:
    """What a byte takes one way, by the smallest size and `up_to`; 0 where they are one or no different."""
    smallest = min(trips)
    return 0.0 if up_to == smallest else max(0.0, trips[up_to] - trips[smallest]) / 2 / (up_to - smallest)


def _held_bytes(cells: Sequence[Cell]) -> float:
    """What the link holds, bandwidth times round trip, by this rank's ping-pongs so far; 0 where they do not tell."""
    trips = _round_trips_ns(cells)
    per_byte = _ns_per_byte(trips, max(trips)) if trips else 0.0
    return trips[min(trips)] / per_byte if per_byte else 0.0


def _expected_ns(cells: Sequence[Cell], size: int, pattern: Pattern) -> float:
    """What one repetition takes at least, by this rank's ping-pongs so far: no less than one of a smaller size.

    A window's bytes take as long as they would one by one, beyond the empty round trip.
    """
    trips = _round_trips_ns(cells)
    if not trips:
        return 0.0
    largest = max(trips)
    if pattern.name == PING_PONG:
        return trips[largest]
    known = size if size in trips else largest
    return trips[min(trips)] + _ns_per_byte(trips, known) * size * pattern.window


def _together(
    pair: Pair,
    channel: Channel,
    control: Control,
    rank: int,
    options: Options,
    allowed: Allowance,
    before: Sequence[Cell],
) -> list[Cell]:
    """This rank's pair sends its largest windows until the time is over, as all others do."""
    source, target = pair
    size = max(options.stream_sizes_bytes)
    if rank == target:
        respond(channel, control, source, size, Pattern(TOGETHER, control.hear(source)))
        return []
    alone = (c for c in before if (c.transport, c.target, c.size_bytes) == (channel.name, target, size))
    window = next((c.pattern.window for c in alone if c.pattern.name == ONE_WAY), window_of(size))
    control.tell(target, window)
    until_time_is_over = msgspec.structs.replace(options.rule, width=-1.0, most=1_000_000)
    share = Allowance(max(allowed.budget_s, TOGETHER_S), max(allowed.limit_s, TOGETHER_S))
    pattern = Pattern(TOGETHER, window)
    return [initiate(channel, control, source, target, size, share, until_time_is_over, pattern)]
