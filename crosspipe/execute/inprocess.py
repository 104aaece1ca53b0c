"""The transport inside one process: ranks are threads, a message is a copy. For tests and for measuring the engine.

It keeps the rendezvous of the real ones: nothing is copied before the receive is posted. Sends do not block.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque

from torch import Tensor

from crosspipe.errors import FieldError
from crosspipe.execute.failure import PeerLost
from crosspipe.execute.transport import Header


class Hub:
    """What the ranks of one process share. `lose(rank)` fails every wait on that rank, as its death would."""

    def __init__(self, size: int, *, timeout_s: float = 10.0) -> None:
        self.size, self.timeout_s = size, timeout_s
        self.changed = threading.Condition()
        self.sent: dict[tuple[int, int], deque[tuple[Header, Tensor]]] = defaultdict(deque)
        self.posted: dict[tuple[int, int], deque[_Receipt]] = defaultdict(deque)
        self.rounds: list[dict[int, bytes]] = []  # of allgather
        self.lost: set[int] = set()

    def lose(self, rank: int) -> None:
        """Declares a rank dead."""
        with self.changed:
            self.lost.add(rank)
            self.changed.notify_all()

    def match(self, channel: tuple[int, int]) -> None:
        """Copies every message of a channel whose receive is posted; to be called with `changed` held."""
        sent, posted = self.sent[channel], self.posted[channel]
        while sent and posted:
            header, tensor = sent.popleft()
            receipt = posted.popleft()
            if (receipt.buffer.shape, receipt.buffer.dtype) != (tensor.shape, tensor.dtype):
                raise FieldError(
                    f"channel {channel[0]}->{channel[1]}",
                    f"{tuple(tensor.shape)} {tensor.dtype}",
                    f"the receive expects {tuple(receipt.buffer.shape)} {receipt.buffer.dtype}",
                    "compare the channels first",
                )
            receipt.buffer.copy_(tensor)
            receipt.header = header
        self.changed.notify_all()


class _Receipt:
    def __init__(self, end: InProcessTransport, source: int, buffer: Tensor) -> None:
        self._end, self._source, self.buffer = end, source, buffer
        self.header: Header | None = None

    def wait(self) -> Header:
        hub, timeout_s = self._end.hub, self._end.timeout_s
        with hub.changed:
            hub.changed.wait_for(lambda: self.header is not None or self._source in hub.lost, timeout_s)
        if self.header is None:
            raise PeerLost(self._source, f"rank {self._source} sent nothing within {timeout_s:g} s")
        return self.header


class InProcessTransport:
    """One thread's end; see `crosspipe.execute.transport.Transport`."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.timeout_s = hub, rank, hub.size, hub.timeout_s
        self._round = 0

    def post_receive(self, source: int, buffer: Tensor) -> _Receipt:
        """See `crosspipe.execute.transport.Transport`."""
        receipt = _Receipt(self, source, buffer)
        with self.hub.changed:
            self.hub.posted[source, self.rank].append(receipt)
            self.hub.match((source, self.rank))
        return receipt

    def send(self, target: int, header: Header, tensor: Tensor) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        with self.hub.changed:
            self.hub.sent[self.rank, target].append((header, tensor))
            self.hub.match((self.rank, target))

    def flush(self) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        mine = [channel for channel in list(self.hub.sent) if channel[0] == self.rank]
        with self.hub.changed:
            self.hub.changed.wait_for(lambda: self.hub.lost or not any(map(self.hub.sent.get, mine)), self.timeout_s)
            for source, target in (channel for channel in mine if self.hub.sent[channel]):
                raise PeerLost(target, f"a message of rank {source} was not taken within {self.timeout_s:g} s")

    def allgather(self, payload: bytes) -> list[bytes]:
        """See `crosspipe.execute.transport.Transport`."""
        number, self._round = self._round, self._round + 1
        with self.hub.changed:
            while len(self.hub.rounds) <= number:
                self.hub.rounds.append({})
            self.hub.rounds[number][self.rank] = payload
            self.hub.changed.notify_all()
            self.hub.changed.wait_for(
                lambda: len(self.hub.rounds[number]) == self.size or self.hub.lost, self.timeout_s
            )
            if len(self.hub.rounds[number]) < self.size:
                raise PeerLost(-1, f"not all {self.size} ranks came within {self.timeout_s:g} s")
            return [self.hub.rounds[number][rank] for rank in range(self.size)]

    def close(self) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        self.hub.lose(self.rank)
