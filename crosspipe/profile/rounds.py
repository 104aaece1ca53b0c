"""Who measures with whom, and when: all pairs of ranks in rounds, so that pairs do not disturb one another.

A round is a matching: no rank is in two pairs. The rounds are those of a round-robin tournament (the circle method,
Kirkman 1847). Ranks that share a machine also share its cores, and all that cross between two sites may share a wire:
a round is cut where its busy ranks would need more cores, or two pairs would cross between the same two sites.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Pair = tuple[int, int]
Round = tuple[Pair, ...]


def rounds(ranks: int) -> tuple[Round, ...]:
    """All pairs (low, high) of `ranks` ranks, each once, in rounds in which no rank occurs twice.

    Even: ranks - 1 rounds of ranks / 2 pairs. Odd: ranks rounds, one rank resting in each. Below 2: no rounds.
    """
    seats = ranks + ranks % 2  # an odd table gets an empty seat; who sits opposite rests
    plan = []
    for turn in range(seats - 1):
        circle = [0] + [1 + (turn + seat) % (seats - 1) for seat in range(seats - 1)]
        pairs = (sorted((circle[i], circle[-1 - i])) for i in range(seats // 2))
        plan.append(tuple(sorted((low, high) for low, high in pairs if high < ranks)))
    return tuple(pairs for pairs in plan if pairs)


def quiet_rounds(
    plan: Sequence[Round], machine_of_rank: Sequence[str], cores: Mapping[str, int], site_of_rank: Sequence[int]
) -> tuple[Round, ...]:
    """The same pairs in the same order, rounds cut so that no machine has more busy ranks than `cores[machine]`.

    Nor does more than one pair of a round cross between the same two sites, in whichever direction. A pair is never
    refused: on a machine with a single core, its own pairs run one at a time.
    """

    def needs(pair: Pair) -> Counter[object]:
        wanted: Counter[object] = Counter(machine_of_rank[rank] for rank in pair)
        sites = frozenset(site_of_rank[rank] for rank in pair)
        if len(sites) == 2:
            wanted[sites] = 1
        return wanted

    there_is: dict[object, int] = dict(cores.items())
    cut = []
    for pairs in plan:
        turns: list[tuple[list[Pair], Counter[object]]] = []
        for pair in pairs:
            need = needs(pair)
            for members, busy in turns:
                if all(busy[name] + count <= there_is.get(name, 1) for name, count in need.items()):
                    members.append(pair)
                    busy.update(need)
                    break
            else:
                turns.append(([pair], need))
        cut += [tuple(members) for members, _ in turns]
    return tuple(cut)
