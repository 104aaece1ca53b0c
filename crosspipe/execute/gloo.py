"""The transport over gloo (torch.distributed on CPU): TCP between processes, on one host or many.

Receives are posted ahead, since gloo moves no byte before. Sends go from one helper thread per target: gloo writes in
the calling thread when the receive is already posted, and a thread per target keeps a channel first in, first out
without one slow receiver holding up the others.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

from crosspipe.execute.failure import PeerLost, first_sentence
from crosspipe.execute.transport import Header

_DATA, _HEADER = 1, 2  # tags


class _GlooReceipt:
    """A posted receive: header and data, each on its own tag."""

    def __init__(self, transport: GlooTransport, source: int, buffer: Tensor) -> None:
        self._transport, self._source = transport, source
        self._header = torch.empty(len(Header._fields), dtype=torch.int64)
        try:
            self._works = [
                dist.irecv(self._header, src=source, tag=_HEADER),
                dist.irecv(buffer, src=source, tag=_DATA),
            ]
        except RuntimeError as error:
            raise _lost(source, "receive", error) from error

    def wait(self) -> Header:
        """See `crosspipe.execute.transport.Receipt`."""
        try:
            for work in self._works:
                work.wait(timedelta(seconds=self._transport.timeout_s))
        except RuntimeError as error:
            raise _lost(self._source, "receive", error) from error
        return Header(*self._header.tolist())


class GlooTransport:
    """One rank of a gloo process group; see `crosspipe.execute.transport.Transport`.

    `rendezvous` is a torch.distributed init method: `file:///…` on a shared file system, or `env://`. `timeout_s`
    bounds the meeting there and, until it is changed, every wait; after a wait that took longer the group is unusable.
    """

    def __init__(self, rank: int, size: int, *, rendezvous: str, timeout_s: float) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        try:
            dist.init_process_group(
                "gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
            )
        except (RuntimeError, dist.DistError) as error:
            raise PeerLost(
                -1, f"the {size} ranks did not find each other at {rendezvous}: {first_sentence(error)}"
            ) from error
        self._senders: dict[int, _Sender] = {}

    def post_receive(self, source: int, buffer: Tensor) -> _GlooReceipt:
        """See `crosspipe.execute.transport.Transport`."""
        return _GlooReceipt(self, source, buffer)

    def send(self, target: int, header: Header, tensor: Tensor) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        if target not in self._senders:
            self._senders[target] = _Sender(self, target)
        self._senders[target].put(header, tensor)

    def flush(self) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        for sender in self._senders.values():
            sender.flush()

    def allgather(self, payload: bytes) -> list[bytes]:
        """See `crosspipe.execute.transport.Transport`."""
        try:
            length = torch.tensor([len(payload)], dtype=torch.int64)
            lengths = [torch.empty_like(length) for _ in range(self.size)]
            self._gather(lengths, length)
            longest = max(1, *(int(n) for n in lengths))
            padded = torch.frombuffer(bytearray(payload.ljust(longest, b"\0")), dtype=torch.uint8)
            rows = [torch.empty_like(padded) for _ in range(self.size)]
            self._gather(rows, padded)
        except RuntimeError as error:
            raise PeerLost(-1, f"the ranks could not meet: {first_sentence(error)}") from error
        return [row.numpy().tobytes()[: int(n)] for row, n in zip(rows, lengths, strict=True)]

    def _gather(self, rows: list[Tensor], row: Tensor) -> None:
        work = dist.all_gather(rows, row, async_op=True)
        assert work is not None
        work.wait(timedelta(seconds=self.timeout_s))

    def close(self) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        for sender in self._senders.values():
            sender.close()
        dist.destroy_process_group()


class _Sender:
    """The helper thread that sends to one target, in order; its first error is raised by the next call."""

    def __init__(self, transport: GlooTransport, target: int) -> None:
        self._transport, self._target = transport, target
        self._queue: SimpleQueue[tuple[Header, Tensor] | threading.Event | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"send-to-{target}", daemon=True)
        self._thread.start()

    def put(self, header: Header, tensor: Tensor) -> None:
        if self._error is not None:
            raise self._error
        self._queue.put((header, tensor))

    def flush(self) -> None:
        drained = threading.Event()
        self._queue.put(drained)
        if not drained.wait(self._transport.timeout_s):
            raise PeerLost(self._target, f"rank {self._target} took no message for {self._transport.timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif self._error is None:
                self._send(*item)
            del item  # the tensor has left: free it before the next one comes

    def _send(self, header: Header, tensor: Tensor) -> None:
        try:
            works = [
                dist.isend(torch.tensor(header, dtype=torch.int64), dst=self._target, tag=_HEADER),
                dist.isend(tensor.contiguous(), dst=self._target, tag=_DATA),
            ]
            for work in works:
                work.wait(timedelta(seconds=self._transport.timeout_s))
        except RuntimeError as error:
            self._error = _lost(self._target, "send", error)
        except Exception as error:  # noqa: BLE001 - raised as it is by the next call, in the thread that can report it
            self._error = error


def _lost(peer: int, what: str, error: RuntimeError) -> PeerLost:
    return PeerLost(peer, f"rank {peer} is lost ({what}: {first_sentence(error)})")


def use_loopback() -> None:
    """Lets gloo listen on the loopback interface, unless told otherwise: all ranks are on this host, whose own name
    may not resolve."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
