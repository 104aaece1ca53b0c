"""Whether a Plan can hang: a small simulation of its posts, sends and waits alone, under rendezvous semantics.

No byte of a message moves before its receive is posted (gloo and NCCL both behave so), a channel is first in, first
out, and with `blocking_sends` the sender itself waits too: what ends then ends on every transport. It knows no times
and is independent of the performance model and of the lowering, which it checks.
"""

from __future__ import annotations

from collections import defaultdict

from crosspipe.errors import Deadlock, FieldError
from crosspipe.execute.plan import Action, Plan
from crosspipe.schedule.order import Message

Channel = tuple[int, int]  # (source rank, target rank)


class _State:
    """How far each rank is, and how many messages of each channel were sent and posted."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.at = [0] * len(plan.ranks)
        self.sent: dict[Channel, list[Message | None]] = defaultdict(list)
        self.posted: dict[Channel, list[Message | None]] = defaultdict(list)
        self.number: dict[tuple[Channel, Message | None], int] = {}  # of each posted receive on its channel
        self.begun = [False] * len(plan.ranks)  # a blocking send that has been counted but has not returned

    def action(self, rank: int) -> Action | None:
        """The next action of a rank; None at its end."""
        actions = self.plan.ranks[rank].actions
        return actions[self.at[rank]] if self.at[rank] < len(actions) else None


def check_rendezvous(plan: Plan, *, blocking_sends: bool = True) -> None:
    """Raises Deadlock, with the cycle in words, if the ranks of `plan` can wait for each other for ever.

    Raises FieldError if the two ends of a channel disagree on the order of its messages, or a rank waits for a message
    that it has not posted. Cost is linear in the number of actions.
    """
    state = _State(plan)
    moved = True
    while moved:
        moved = False
        for rank in range(len(plan.ranks)):
            while _step(state, rank, blocking_sends):
                moved = True
    stuck = [rank for rank in range(len(plan.ranks)) if state.action(rank) is not None]
    if stuck:
        raise Deadlock(_cycle(state, stuck[0]))
    for channel in {*state.sent, *state.posted}:
        sent, posted = len(state.sent[channel]), len(state.posted[channel])
        if sent != posted:
            raise FieldError(
                f"channel {channel[0]}->{channel[1]}",
                f"{sent} sends",
                f"its receiver posts {posted} receives",
                "every message needs both",
            )


def _step(state: _State, rank: int, blocking_sends: bool) -> bool:
    """Lets a rank do its next action if it can."""
    action = state.action(rank)
    if action is None:
        return False
    if action.kind == "send":
        channel = (rank, action.peer)
        if not state.begun[rank]:
            state.sent[channel].append(action.message)
            _check_order(state, channel, len(state.sent[channel]) - 1)
            state.begun[rank] = True
        if blocking_sends and len(state.posted[channel]) < len(state.sent[channel]):
            return False
        state.begun[rank] = False
    elif action.kind == "post":
        channel = (action.peer, rank)
        state.number[channel, action.message] = len(state.posted[channel])
        state.posted[channel].append(action.message)
        _check_order(state, channel, len(state.posted[channel]) - 1)
    elif action.kind == "wait" and not _delivered(state, rank, action):
        return False
    state.at[rank] += 1
    return True


def _check_order(state: _State, channel: Channel, number: int) -> None:
    sent, posted = state.sent[channel], state.posted[channel]
    if number < min(len(sent), len(posted)) and sent[number] != posted[number]:
        raise FieldError(
            f"channel {channel[0]}->{channel[1]}",
            f"message number {number} is sent as {sent[number]}",
            f"its receiver posts {posted[number]}",
            "post receives in the order of their sends",
        )


def _delivered(state: _State, rank: int, action: Action) -> bool:
    channel = (action.peer, rank)
    if (channel, action.message) not in state.number:
        raise FieldError(f"rank {rank}", str(action), "its receive has not been posted", "post it before the wait")
    return len(state.sent[channel]) > state.number[channel, action.message]


def _cycle(state: _State, rank: int) -> list[str]:
    """Follows who waits for whom from a stuck rank until a rank repeats (or has ended without doing its part)."""
    path: dict[int, str] = {}
    while rank not in path:
        action = state.action(rank)
        if action is None:
            path[rank] = f"rank {rank} has ended"
            return list(path.values())
        missing = "has posted its receive" if action.kind == "send" else "has sent it"
        path[rank] = f"rank {rank} stops at '{action}' until rank {action.peer} {missing}"
        rank = action.peer
    return list(path.values())[list(path).index(rank) :]
