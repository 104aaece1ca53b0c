"""Why an order can never finish: who waits for whom, in words.

Which blocks run before everything stops does not depend on times, so the cycle is found from the orders and how far
each stage came. It is not a proof of the absence of deadlock; running the performance model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crosspipe.errors import Deadlock
from crosspipe.problem import Problem
from crosspipe.schedule.order import Message, Schedule


class Wait(NamedTuple):
    """One sentence of the cycle and the stage it leads to (None: nobody will ever resolve it)."""

    words: str
    waits_for: int | None


def explain_deadlock(problem: Problem, schedule: Schedule, done: Sequence[int]) -> Deadlock:
    """The Deadlock of a schedule whose stage s stopped after `done[s]` blocks; names a cycle, or the missing thing."""
    made_by = _makers(problem, schedule)
    stuck = [s for s, order in enumerate(schedule.orders) if done[s] < len(order)]
    if not stuck:
        return Deadlock([_held_back(problem, schedule, done, made_by)])
    stage: int | None = stuck[0]
    path: dict[int, str] = {}
    while stage is not None and stage not in path:
        words, following = _wait_of(problem, schedule, done, made_by, stage)
        path[stage], stage = words, following
    sentences = list(path.values())
    return Deadlock(sentences if stage is None else sentences[list(path).index(stage) :])


Makers = dict[
    tuple[str, int, int], tuple[int, int]
]  # (kind F or D, position, microbatch) -> (stage, place in its order)


def _makers(problem: Problem, schedule: Schedule) -> Makers:
    made_by: Makers = {}
    last: dict[int, tuple[int, int]] = {}
    for stage, order in enumerate(schedule.orders):
        for i, block in enumerate(order):
            position = problem.position(stage, block.chunk)
            if block.kind != "W":
                made_by["D" if block.kind == "B" else block.kind, position, block.microbatch] = (stage, i)
            if block.kind in ("W", "B"):
                last[position] = (stage, i)
    for position, place in last.items():
        made_by["reduce", position, 0] = place
    return made_by


def _wait_of(problem: Problem, schedule: Schedule, done: Sequence[int], made_by: Makers, stage: int) -> Wait:
    """What a stuck stage waits for."""
    block = schedule.orders[stage][done[stage]]
    position = problem.position(stage, block.chunk)
    before = f"stage {stage} waits before {block}"

    def is_done(kind: str, where: int) -> bool:
        maker = made_by.get((kind, where, block.microbatch))
        return maker is not None and maker[1] < done[maker[0]]

    own = {"F": None, "W": "D"}.get(block.kind, "F")
    if own is not None and not is_done(own, position):
        needed = f"its own {own}{block.microbatch} of chunk {block.chunk}"
        if (own, position, block.microbatch) in made_by:
            return Wait(f"{before} for {needed}, which comes later in its order", stage)
        return Wait(f"{before} for {needed}, which is not in its order", None)
    gather = problem.message_hop("gather", position) if block.kind == "F" else None
    if gather is not None and _is_held(schedule, done, made_by, gather.wire, Message("gather", position, 0)):
        return _behind(problem, schedule, done, made_by, before, Message("gather", position, 0))
    source = position - 1 if block.kind == "F" else position + 1
    message = Message("F" if block.kind == "F" else "D", source, block.microbatch)
    maker = made_by.get(message)
    sender = problem.place(source)[0]
    if maker is None:
        return Wait(f"{before} for the {message}, whose block is not in the order of stage {sender}", None)
    if maker[1] >= done[sender]:
        return Wait(f"{before} for the {message}, which stage {sender} has not made", sender)
    return _behind(problem, schedule, done, made_by, before, message)


def _is_held(schedule: Schedule, done: Sequence[int], made_by: Makers, wire: str | None, message: Message) -> bool:
    """Whether a message that is ready waits for ever on a wire with a listed order."""
    if wire is None or wire not in schedule.messages:
        return False
    return message not in _served(schedule, done, made_by, wire)


def _served(schedule: Schedule, done: Sequence[int], made_by: Makers, wire: str) -> tuple[Message, ...]:
    """The head of a listed wire's order that was served before everything stopped."""
    order = schedule.messages[wire]
    for i, message in enumerate(order):
        maker = made_by.get(message)
        if message.kind != "gather" and (maker is None or maker[1] >= done[maker[0]]):
            return order[:i]
    return order


def _behind(
    problem: Problem, schedule: Schedule, done: Sequence[int], made_by: Makers, before: str, message: Message
) -> Wait:
    """The wait for a message that is ready but held by the listed order of its wire."""
    hop = problem.message_hop(message.kind, message.position)
    assert hop is not None
    assert hop.wire is not None
    order = schedule.messages[hop.wire]
    held = f"{before} for the {message}, which wire {hop.wire}"
    if message not in order:
        return Wait(f"{held} does not list", None)
    head = order[len(_served(schedule, done, made_by, hop.wire))]
    maker = made_by.get(head)
    if maker is None:
        return Wait(f"{held} holds behind the {head}, which nobody sends", None)
    return Wait(f"{held} holds behind the {head}, which stage {maker[0]} has not made", maker[0])


def _held_back(problem: Problem, schedule: Schedule, done: Sequence[int], made_by: Makers) -> str:
    """Every stage ended, but a wire still holds a message."""
    messages: list[Message] = [Message(*key) for key in made_by]
    messages += [Message("gather", k, 0) for k in range(problem.positions)]
    for message in messages:
        hop = problem.message_hop(message.kind, message.position)
        if hop is not None and _is_held(schedule, done, made_by, hop.wire, message):
            return _behind(problem, schedule, done, made_by, "the iteration waits", message).words
    raise AssertionError("explain_deadlock was called for a schedule that finishes")
