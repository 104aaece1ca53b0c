"""The transport over gloo (torch.distributed on CPU): TCP between processes, on one host or many.

Receives are posted ahead, since gloo moves no byte before. gloo writes in the calling thread when the receive is
already posted: small messages are sent at once, large ones from one helper thread per target, which keeps a channel
first in, first out without one slow receiver holding up the others.
"""

from __future__ import annotations

import os
import struct
import threading
from datetime import timedelta
from queue import SimpleQueue
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from crosspipe.execute.failure import PeerLost, first_sentence
from crosspipe.execute.priority import promptly
from crosspipe.execute.transport import Header

_DATA, _HEADER = 1, 2  # tags
_NUMBERS = struct.Struct(f"={len(Header._fields)}q")
SMALL_BYTES = 2**20  # written in some 0.2 ms; handing a message to another thread takes about as long


class _GlooReceipt:
    """A posted receive: header and data, each on its own tag."""

    def __init__(self, transport: GlooTransport, source: int, buffer: Tensor) -> None:
        self._transport, self._source = transport, source
        self._header = torch.empty(len(Header._fields), dtype=torch.int64)
        try:
            group = transport.group
            self._works = [group.recv([self._header], source, _HEADER), group.recv([buffer], source, _DATA)]
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
    With `prompt` its threads go before those that compute (`crosspipe.execute.priority`).
    """

    def __init__(self, rank: int, size: int, *, rendezvous: str, timeout_s: float, prompt: bool = False) -> None:
        self.rank, self.size, self.timeout_s, self.prompt = rank, size, timeout_s, prompt
        try:
            with promptly(prompt):
                dist.init_process_group(
                    "gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
                )
        except (RuntimeError, dist.DistError) as error:
            raise PeerLost(
                -1, f"the {size} ranks did not find each other at {rendezvous}: {first_sentence(error)}"
            ) from error
        assert dist.group.WORLD is not None
        self.group = dist.group.WORLD  # asked itself: isend and irecv spend longer in Python than a message on its way
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
    """What goes to one target, in order: a small message in the calling thread, with the system call that it costs; a
    large one, and the wait for every one's end, in a helper thread. Its first error is raised by the next call."""

    def __init__(self, transport: GlooTransport, target: int) -> None:
        self._transport, self._target = transport, target
        self._queue: SimpleQueue[_Sent | tuple[Header, Tensor] | threading.Event | None] = SimpleQueue()
        self._put = self._started = 0  # large ones: queued, and taken to gloo
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"send-to-{target}", daemon=True)
        self._thread.start()

    def put(self, header: Header, tensor: Tensor) -> None:
        if self._error is not None:
            raise self._error
        if tensor.nbytes <= SMALL_BYTES and self._put == self._started:
            self._queue.put(self._start(header, tensor))
        else:
            self._put += 1
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
        with promptly(self._transport.prompt):
            while (item := self._queue.get()) is not None:
                if isinstance(item, threading.Event):
                    item.set()
                elif self._error is None:
                    self._finish(item)
                del item  # the tensor has left: free it before the next one comes

    def _finish(self, item: _Sent | tuple[Header, Tensor]) -> None:
        try:
            if not isinstance(item, _Sent):
                item = self._start(*item)
                self._started += 1
            for work in item.works:
                work.wait(timedelta(seconds=self._transport.timeout_s))
        except RuntimeError as error:
            self._error = _lost(self._target, "send", error)
        except Exception as error:  # noqa: BLE001 - raised as it is by the next call, in the thread that can report it
            self._error = error

    def _start(self, header: Header, tensor: Tensor) -> _Sent:
        numbers = torch.frombuffer(bytearray(_NUMBERS.pack(*header)), dtype=torch.int64)
        values = tensor.contiguous()
        try:
            group, target = self._transport.group, self._target
            works = group.send([numbers], target, _HEADER), group.send([values], target, _DATA)
        except RuntimeError as error:
            raise _lost(self._target, "send", error) from error
        return _Sent(works, (numbers, values))


class _Sent(NamedTuple):
    """A message on its way, and what must stay until it has left."""

    works: tuple[dist.Work, ...]
    held: tuple[Tensor, ...]


def _lost(peer: int, what: str, error: RuntimeError) -> PeerLost:
    return PeerLost(peer, f"rank {peer} is lost ({what}: {first_sentence(error)})")


def use_loopback() -> None:
    """Lets gloo listen on the loopback interface, unless told otherwise: all ranks are on this host, whose own name
    may not resolve."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
