"""Which message a block uses and which it makes: the model's dependencies, as one rank sees them."""

from __future__ import annotations

from crosspipe.problem import Problem
from crosspipe.schedule.order import Block, Message


def needed(problem: Problem, rank: int, block: Block) -> Message | None:
    """The message a block uses; None for W, for F at the first and D at the last position."""
    position = problem.position(rank, block.chunk)
    if block.kind == "F":
        return Message("F", position - 1, block.microbatch) if position else None
    if block.kind == "W" or position == problem.positions - 1:
        return None
    return Message("D", position + 1, block.microbatch)


def made(problem: Problem, rank: int, block: Block) -> tuple[Message, int] | None:
    """The message a block makes and the rank that uses it; None for W, F at the last and D at the first position."""
    position = problem.position(rank, block.chunk)
    target = position + 1 if block.kind == "F" else position - 1
    if block.kind == "W" or not 0 <= target < problem.positions:
        return None
    return Message("F" if block.kind == "F" else "D", position, block.microbatch), problem.place(target)[0]
