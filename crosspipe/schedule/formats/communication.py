"""Sends and receives between ranks in a pipelining CSV: putting them in, and proving that those of a file meet.

Between two ranks NCCL executes what each has posted strictly in order, whatever the tags: a pair of ranks that both
send first never comes on, and exchanged receives silently deliver the wrong tensor (PyTorch issue reports of both).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from crosspipe.errors import Deadlock
from crosspipe.schedule.formats.action import Action

_MAKERS = ("F", "I", "B")
_Message = tuple[str, int, int]  # F or B, position that sends it, microbatch


def message_of(action: Action) -> _Message | None:
    """The message a send or receive is about, or that a block makes; None for other actions."""
    if action.name not in (*_MAKERS, "SEND_F", "SEND_B", "RECV_F", "RECV_B"):
        return None
    direction = "F" if action.name.endswith("F") else "B"
    sender = action.position + {"RECV_F": -1, "RECV_B": 1}.get(action.name, 0)
    return direction, sender, action.microbatch or 0


def input_of(action: Action, positions: int) -> _Message | None:
    """The message from its neighbour that a block needs; None at the ends of the pipeline and for W."""
    if action.name == "F" and action.position > 0:
        return "F", action.position - 1, action.microbatch or 0
    if action.name in ("I", "B") and action.position + 1 < positions:
        return "B", action.position + 1, action.microbatch or 0
    return None


def needs_of(action: Action, positions: int) -> set[_Message]:
    """All that a block needs: its input, and on its own rank D its F and W its D."""
    received = input_of(action, positions)
    own = {"I": "F", "B": "F", "W": "B"}.get(action.name)
    needs = set() if received is None else {received}
    return needs if own is None else needs | {(own, action.position, action.microbatch or 0)}


def receiver_of(message: _Message, homes: Sequence[int]) -> int | None:
    """The rank a message goes to; None where it goes nowhere or stays on its rank."""
    target = message[1] + (1 if message[0] == "F" else -1)
    if not 0 <= target < len(homes) or homes[target] == homes[message[1]]:
        return None
    return homes[target]


def with_communication(rows: Sequence[Sequence[Action]], homes: Sequence[int]) -> list[list[Action]]:
    """The rows with a send after every block whose output leaves its rank and the receive at the same moment on the
    other side, as PyTorch lowers an order: all ranks follow one common sequence, so sends and receives meet.

    Raises Deadlock where the blocks alone cannot all run.
    """
    waiting = [deque(row) for row in rows]
    lowered: list[list[Action]] = [[] for _ in rows]
    there: list[set[_Message]] = [set() for _ in rows]  # made on the rank, or received
    while any(waiting):
        moved = False
        for rank, row in enumerate(waiting):
            if not row or not needs_of(row[0], len(homes)) <= there[rank]:
                continue
            block = row.popleft()
            moved = True
            lowered[rank].append(block)
            made = message_of(block)
            if made is None:
                continue
            there[rank].add(made)
            target = receiver_of(made, homes)
            if target is not None:
                direction, position, _ = made
                lowered[rank].append(block._replace(name=f"SEND_{direction}"))
                after = position + (1 if direction == "F" else -1)
                received = block._replace(row=target, name=f"RECV_{direction}", position=after)
                lowered[target].append(received)
                there[target].add(made)
        if not moved:
            stuck = [f"rank {rank} waits before {row[0]} for what it needs" for rank, row in enumerate(waiting) if row]
            raise Deadlock(stuck)
    return lowered


def check_communication(rows: Sequence[Sequence[Action]], homes: Sequence[int]) -> None:
    """Raises FieldError where a send or receive is missing, superfluous, too early, too late or out of order; Deadlock
    where all are there but never meet."""
    sends: dict[_Message, Action] = {}
    receives: dict[_Message, Action] = {}
    place = {action: i for row in rows for i, action in enumerate(row)}
    makers = {message_of(a): a for row in rows for a in row if a.name in _MAKERS}
    for action in (a for row in rows for a in row if a.name.startswith(("SEND", "RECV"))):
        message = message_of(action)
        assert message is not None
        maker = makers.get(message)
        if maker is None or receiver_of(message, homes) is None:
            raise action.wrong("no block makes a message that goes this way", "remove it")
        (sends if action.name.startswith("SEND") else receives)[message] = action
        if action.name.startswith("SEND") and place[action] < place[maker]:
            raise action.wrong(f"stands before {maker}, which makes what it sends", f"put it after {maker}")
    for action in (a for row in rows for a in row):
        needed = input_of(action, len(homes))
        made = message_of(action) if action.name in _MAKERS else None
        if needed is not None and receiver_of(needed, homes) is not None:
            received = receives.get(needed)
            if received is None or place[received] > place[action]:
                name = f"{action.position}RECV_{needed[0]}{needed[2]}"
                raise action.wrong(f"its input is not received before it ({name})", f"put {name} before it")
        if made is not None and receiver_of(made, homes) is not None and made not in sends:
            name = f"{action.position}SEND_{made[0]}{made[2]}"
            raise action.wrong(f"its output is never sent ({name})", f"put {name} after it")
    _refuse_exchanged(rows, homes, makers, place)
    _refuse_deadlock(rows, homes)


def _refuse_exchanged(
    rows: Sequence[Sequence[Action]],
    homes: Sequence[int],
    makers: dict[_Message | None, Action],
    place: dict[Action, int],
) -> None:
    """Between two ranks, sends must be in the order of their blocks and receives in the order of the sends."""
    sent: dict[tuple[int, int], deque[Action]] = {}
    for row in rows:
        latest: dict[int, Action] = {}
        for action in row:
            message = message_of(action)
            if message is None or not action.name.startswith("SEND"):
                continue
            target = receiver_of(message, homes)
            assert target is not None
            before = latest.get(target)
            if before is not None and place[makers[message_of(before)]] > place[makers[message]]:
                raise action.wrong(
                    f"is sent after {before}, but its block runs before", "send in the order of the blocks"
                )
            latest[target] = action
            sent.setdefault((action.row, target), deque()).append(action)
    for row in rows:
        for action in row:
            message = message_of(action)
            if message is None or not action.name.startswith("RECV"):
                continue
            expected = sent[homes[message[1]], action.row].popleft()
            if message_of(expected) != message:
                raise action.wrong(
                    f"meets {expected} ({expected.where}): between two ranks the n-th receive gets the n-th send",
                    "receive in the order of the sends",
                )


def _refuse_deadlock(rows: Sequence[Sequence[Action]], homes: Sequence[int]) -> None:
    """Runs the ranks: each posts sends and receives as it comes to them and stops before a block whose input is not
    there. Between two ranks, only the first outstanding action of each side can be executed, and only both together.
    """
    reached = [0] * len(rows)
    posted: dict[tuple[int, int], deque[Action]] = {}  # (rank, its peer) -> outstanding, in order
    there: list[set[_Message]] = [set() for _ in rows]

    def peer(action: Action) -> int:
        message = message_of(action)
        assert message is not None
        other = receiver_of(message, homes) if action.name.startswith("SEND") else homes[message[1]]
        assert other is not None
        return other

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while reached[rank] < len(row):
                action = row[reached[rank]]
                needed = input_of(action, len(homes))
                if needed is not None and homes[needed[1]] != rank and needed not in there[rank]:
                    break
                if action.name.startswith(("SEND", "RECV")):
                    posted.setdefault((rank, peer(action)), deque()).append(action)
                reached[rank] += 1
                moved = True
        for (rank, other), mine in posted.items():
            theirs = posted.get((other, rank), deque())
            while mine and theirs and rank < other and message_of(mine[0]) == message_of(theirs[0]):
                for done, at in ((mine.popleft(), rank), (theirs.popleft(), other)):
                    message = message_of(done)
                    assert message is not None
                    there[at].add(message)
                moved = True
    stuck = [rank for rank, row in enumerate(rows) if reached[rank] < len(row)]
    if stuck:
        raise Deadlock(_cycle(rows, homes, reached, posted, stuck[0]))


def _cycle(
    rows: Sequence[Sequence[Action]],
    homes: Sequence[int],
    reached: Sequence[int],
    posted: dict[tuple[int, int], deque[Action]],
    rank: int,
) -> list[str]:
    """Who waits for whom, from a rank that stopped before a block."""
    path: dict[int, str] = {}
    while rank not in path:
        block = rows[rank][reached[rank]]
        needed = input_of(block, len(homes))
        assert needed is not None
        other = homes[needed[1]]
        mine, theirs = posted[rank, other][0], posted.get((other, rank))
        waits = f"rank {rank} waits in {mine} ({mine.where}) before {block} ({block.where})"
        if theirs:  # both have posted, and neither answers the other
            first = theirs[0]
            answer = f"rank {other} waits in {first} ({first.where})"
            return [f"{waits} for rank {other} to answer it", f"{answer} for rank {rank} to answer it"]
        path[rank] = f"{waits} for rank {other}, which has not come to its side of it"
        rank = other
    return list(path.values())[list(path).index(rank) :]
