"""The Plan: per rank the flat list of actions that the engine executes, and the receive buffers they need.

It holds no times and no tensors. `crosspipe.execute.lowering` makes it from a Schedule, `crosspipe.execute.deadlock`
proves that it ends, `crosspipe.execute.engine` runs one rank of it. A rank is a pipeline stage.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from crosspipe.errors import FieldError
from crosspipe.schedule.order import Block, Message

ActionKind = Literal["post", "wait", "compute", "send", "release", "gather", "gathered", "reduce"]


class Action(NamedTuple):
    """One step of a rank.

    `post` opens the receive of `message` from rank `peer` into buffer `slot`; `wait` waits for it; `compute` runs
    `block`; `send` hands `message` to the channel towards `peer` and goes on at once; `release` gives `slot` back once
    nothing can read it any more. With data parallelism `gather` starts to collect the parameters of `message`'s
    position from the replicas of this stage, `gathered` waits for them, `reduce` starts to average its gradients; the
    iteration ends when all that was started has ended.
    """

    kind: ActionKind
    block: Block | None = None
    message: Message | None = None
    peer: int = -1
    slot: int = -1

    def __str__(self) -> str:
        if self.kind == "compute":
            return f"compute {self.block}"
        if self.kind == "release":
            return f"release buffer {self.slot}"
        if self.kind in ("gather", "gathered", "reduce"):
            return f"{'wait for' if self.kind == 'gathered' else 'start'} the {self.message}"
        words = {"post": "post the receive of", "wait": "wait for", "send": "send"}[self.kind]
        return f"{words} {self.message} {'to' if self.kind == 'send' else 'from'} rank {self.peer}"


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape and number format of every message, on which both ends of a channel must agree."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


class RankPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank does in an iteration, and the bytes of each of its receive buffers (`slot` numbers them)."""

    rank: int
    actions: tuple[Action, ...]
    slot_bytes: tuple[int, ...] = ()

    @property
    def receive_bytes(self) -> int:
        """Memory of all receive buffers, beside the activations."""
        return sum(self.slot_bytes)

    def check_slots(self, message_format: Format) -> None:
        """FieldError if the plan was lowered for messages of another size."""
        expected = message_format.size_bytes
        for slot, size in enumerate(self.slot_bytes):
            if size != expected:
                raise FieldError(f"slot_bytes[{slot}]", size, f"messages are {expected} bytes", "lower the plan anew")

    def where(self, number: int) -> str:
        """The action of that number in words, with its place in the schedule: the block that is due there."""
        if not 0 <= number < len(self.actions):
            return "the start of the iteration" if number < 0 else "the end of the blocks, with the other ranks"
        due = [(i, a.block) for i, a in enumerate(self.actions) if a.block is not None]
        place, block = next(((k, b) for k, (i, b) in enumerate(due) if i >= number), (len(due), None))
        at = "after its last block" if block is None else f"block {place + 1} of {len(due)}, {block}"
        return f"action {number} of {len(self.actions)}, '{self.actions[number]}' (stage {self.rank}, {at})"

    def channels(self) -> dict[tuple[int, int], tuple[Message, ...]]:
        """(source, target) -> its messages in the order this rank sends or posts them. At most four in a `ud` plan."""
        found: dict[tuple[int, int], list[Message]] = {}
        for action in self.actions:
            if action.message is not None and action.kind in ("send", "post"):
                ends = (self.rank, action.peer) if action.kind == "send" else (action.peer, self.rank)
                found.setdefault(ends, []).append(action.message)
        return {ends: tuple(messages) for ends, messages in found.items()}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="plan"):
    """A Schedule, lowered. `wire_senders[wire]` are the ranks that send over it; more than one share its state.

    `predicted_makespan_ns` is what the performance model says of it.
    """

    schema: int = 1
    schedule_name: str
    problem_digest: str
    predicted_makespan_ns: int
    ranks: tuple[RankPlan, ...]
    wire_senders: dict[str, tuple[int, ...]] = {}

    @property
    def receive_bytes(self) -> tuple[int, ...]:
        """Receive buffers of each rank in bytes."""
        return tuple(rank.receive_bytes for rank in self.ranks)
