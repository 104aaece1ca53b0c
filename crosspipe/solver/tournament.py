"""Which of many stages acts first: a winner tree over their times, for compiled code.

A change of one time replays the matches on its way to the root, which is what makes planning over many stages quick.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.kernel import NEVER, Ints


class Tournament(NamedTuple):
    """`time[i]` of each contestant, NEVER where it has none; `winner[node]` of every match, the root at 1."""

    time: Ints
    winner: Ints


@compiled
def new_tournament(contestants: int) -> Tournament:
    """Nobody has a time yet."""
    width = 1
    while width < contestants:
        width *= 2
    winner = np.zeros(2 * width, dtype=np.int64)
    for node in range(2 * width - 1, 0, -1):
        winner[node] = node - width if node >= width else winner[2 * node]
    return Tournament(np.full(width, NEVER), winner)


@compiled
def play(tournament: Tournament, contestant: int, time: int) -> None:
    """Gives a contestant its time."""
    times, winner = tournament.time, tournament.winner
    times[contestant] = time
    node = (len(times) + contestant) >> 1
    while node > 0:
        one, other = winner[2 * node], winner[2 * node + 1]
        winner[node] = one if times[one] <= times[other] else other
        node >>= 1


@compiled
def first(tournament: Tournament) -> tuple[int, int]:
    """(the contestant with the least time, the lowest of equals; its time)."""
    winner = tournament.winner[1]
    return winner, tournament.time[winner]
