"""The normal form that searches work in: microbatches in order, backward split unless fusing pays, W cut as allowed.

Nothing is lost by it. Microbatches are identical, so per (stage, chunk, kind) the k-th block that runs may be called
microbatch k: a block's k-th input is there no later than before, and as much memory is held. A fused B that is no
shorter than D and W is replaced by the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import msgspec

from crosspipe.problem import BlockCost, Problem
from crosspipe.schedule import Block, Message, Schedule


def fusing_pays(cost: BlockCost) -> bool:
    """Whether a fused B is shorter than D and W apart."""
    return cost.backward_ns < cost.input_grad_ns + cost.weight_grad_ns


def decisions(problem: Problem) -> int:
    """How many pairs of blocks on a stage have no order of their own, at most: what a search must decide."""
    count, pieces = problem.microbatches, problem.weight_grad_pieces
    lengths = [count, count, count * pieces] * problem.chunks
    return problem.stages * sum(a * b for a, b in combinations(lengths, 2))


def in_order(problem: Problem, schedule: Schedule) -> Schedule | None:
    """The schedule in normal form, every W in `problem.weight_grad_pieces` pieces; None if its W are cut otherwise."""
    pieces = problem.weight_grad_pieces
    if any(b.pieces not in (1, pieces) for order in schedule.orders for b in order):
        return None
    orders = tuple(tuple(_relabelled(problem, stage, order)) for stage, order in enumerate(schedule.orders))
    return msgspec.structs.replace(
        schedule,
        orders=orders,
        messages={wire: _messages_in_order(order) for wire, order in schedule.messages.items()},
        certificate=None,
        provenance=None,
    )


def _relabelled(problem: Problem, stage: int, order: tuple[Block, ...]) -> Iterator[Block]:
    costs, pieces = problem.costs[stage], problem.weight_grad_pieces
    counts: Counter[tuple[str, int]] = Counter()
    split: list[list[int]] = [[] for _ in costs]  # per chunk the microbatches whose W runs on its own, in order
    for block in order:
        kind, chunk = block.kind, block.chunk
        if kind in "DB":
            microbatch = counts["D", chunk]
            counts["D", chunk] += 1
            if kind == "B" and fusing_pays(costs[chunk]):
                yield Block("B", chunk, microbatch)
                continue
            split[chunk].append(microbatch)
            yield Block("D", chunk, microbatch)
        if kind == "F":
            yield Block("F", chunk, counts["F", chunk])
            counts["F", chunk] += 1
        elif kind in "WB":
            for _ in range(pieces // block.pieces):
                index, piece = divmod(counts["W", chunk], pieces)
                counts["W", chunk] += 1
                yield Block("W", chunk, split[chunk][index], piece, pieces)


def _messages_in_order(order: tuple[Message, ...]) -> tuple[Message, ...]:
    counts: Counter[tuple[str, int]] = Counter()
    renamed = []
    for kind, position, _ in order:
        renamed.append(Message(kind, position, counts[kind, position]))
        counts[kind, position] += 1
    return tuple(renamed)


def joined(order: tuple[Block, ...]) -> tuple[Block, ...]:
    """The same order with a W whole again where all its pieces follow one another."""
    result: list[Block] = []
    for block in order:
        result.append(block)
        kind, chunk, microbatch, piece, pieces = block
        if kind == "W" and 0 < piece == pieces - 1:
            whole = [Block("W", chunk, microbatch, i, pieces) for i in range(pieces)]
            if result[-pieces:] == whole:
                result[-pieces:] = [Block("W", chunk, microbatch)]
    return tuple(result)
