"""What the engine asks of a transport: post a receive, send, wait, and tell all ranks a few bytes.

A channel is a pair (source rank, target rank); its messages arrive in the order they were sent, each with a small
header. `GlooTransport` lives in `crosspipe.execute.gloo`, threads in one process in `crosspipe.execute.inprocess`. Runs
on GPUs use it for words only: their tensors go over `crosspipe.execute.nccl`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec
from torch import Tensor

from crosspipe.errors import FieldError
from crosspipe.execute.plan import Format, RankPlan
from crosspipe.schedule.order import Message


class Header(NamedTuple):
    """What travels with every message: its number on the channel, and its planned life in ns on the common clock.

    `ready_ns` the block's end, `start_ns` and `served_ns` its service by the wire, `not_before_ns` the moment it counts
    as arrived. Where nothing is emulated the last three equal `ready_ns`.
    """

    number: int
    ready_ns: int
    start_ns: int
    served_ns: int
    not_before_ns: int


class Receipt(Protocol):
    """A posted receive."""

    def wait(self) -> Header:
        """Blocks until the message is in its buffer; PeerLost if it does not come within the transport's time-out."""


class Transport(Protocol):
    """One rank's end of all channels. Errors of a lost peer are PeerLost, from any call.

    `timeout_s` bounds every wait from now on; it may be changed, by all ranks at the same place.
    """

    rank: int
    size: int
    timeout_s: float

    def post_receive(self, source: int, buffer: Tensor) -> Receipt:
        """Opens the receive of the next message from `source` into `buffer` (contiguous, of exactly its size)."""

    def send(self, target: int, header: Header, tensor: Tensor) -> None:
        """Hands a message to the channel towards `target` and returns at once; keeps `tensor` alive until it left."""

    def flush(self) -> None:
        """Blocks until every message handed over has left."""

    def allgather(self, payload: bytes) -> list[bytes]:
        """Every rank's `payload`, in rank order, on every rank; no rank returns before all have called it."""

    def close(self) -> None:
        """Ends the channels; further calls are errors."""


class _Ends(msgspec.Struct, frozen=True):
    """What one rank is about to send and receive: its format, and the messages of each channel it has an end of."""

    format: Format
    sends: dict[str, tuple[Message, ...]]
    receives: dict[str, tuple[Message, ...]]


def compare_channels(transport: Transport, plan: RankPlan, message_format: Format) -> None:
    """Raises FieldError on every rank unless both ends of every channel agree on count, order, shape and number format.

    To be called by all ranks before the first message: a mismatch would hang, abort the process or fill a buffer
    partly. Collective.
    """
    mine = _Ends(
        message_format,
        {str(target): m for (source, target), m in plan.channels().items() if source == plan.rank},
        {str(source): m for (source, target), m in plan.channels().items() if target == plan.rank},
    )
    ends = [msgspec.json.decode(raw, type=_Ends) for raw in transport.allgather(msgspec.json.encode(mine))]
    for rank, end in enumerate(ends):
        for peer in {*end.sends, *_ends_towards(ends, rank)}:
            there = ends[int(peer)]
            sent, received = end.sends.get(peer, ()), there.receives.get(str(rank), ())
            what = f"channel {rank}->{peer}"
            if sent and end.format != there.format:
                raise FieldError(what, end.format, f"rank {peer} expects {there.format}", "give all ranks one model")
            if sent == received:
                continue
            if len(sent) != len(received):
                raise FieldError(
                    what, f"{len(sent)} messages sent", f"rank {peer} posts {len(received)}", "give all ranks one plan"
                )
            number = next(i for i, pair in enumerate(zip(sent, received, strict=True)) if pair[0] != pair[1])
            raise FieldError(
                what,
                f"{sent[number]} sent as number {number}",
                f"rank {peer} posts {received[number]}",
                "give all ranks one plan",
            )


def _ends_towards(ends: list[_Ends], rank: int) -> set[str]:
    """Ranks that post receives from `rank`."""
    return {str(peer) for peer, end in enumerate(ends) if str(rank) in end.receives}
