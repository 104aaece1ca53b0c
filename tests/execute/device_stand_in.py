"""A device that is the CPU: what the kernels of `crosspipe.execute.cuda_wire` say, in Python. For tests only."""

from __future__ import annotations

import time
from contextlib import contextmanager

import torch

from crosspipe.execute.transport import Header


class HostClock:
    """The three kernels, on CPU tensors and CLOCK_MONOTONIC."""

    def stamp(self, out) -> None:
        out.fill_(time.monotonic_ns())

    def depart(self, ready, wire, delay, header) -> None:
        start = max(int(ready), int(wire))
        served = start + int(delay[1])
        wire.fill_(served)
        header.copy_(torch.tensor([int(delay[0]), int(ready), start, served, served + int(delay[2])]))

    def arrive(self, header, posted, arrival) -> None:
        received = time.monotonic_ns()
        until = max(int(header[4]), int(posted) + int(header[4]) - int(header[2]))
        while time.monotonic_ns() < until:
            time.sleep(0)
        arrival.copy_(torch.tensor([received, time.monotonic_ns(), *header.tolist()[:4], until]))


class HostDevice:
    """See `crosspipe.execute.cuda_device.CudaDevice`; `launched` lists what was put on which stream."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.clock, self.launched = HostClock(), []
        self.settings = 0  # of its clock
        self.stream = None  # the name of the current one; None computes

    @contextmanager
    def beside(self, name, *, behind):
        self.launched.append((name, behind))
        self.stream = name
        try:
            yield
        finally:
            self.stream = None

    def set_clock(self) -> None:
        self.settings += 1

    def mark(self):
        return len(self.launched)

    def after(self, mark) -> None:
        self.launched.append(("after", mark))

    def done(self, mark) -> bool:
        return True

    def peek(self, notes):
        return notes.tolist()

    def keep(self, tensor) -> None:
        pass

    def synchronize(self) -> None:
        pass


class HubChannels:
    """Channels over the in-process transport, with headers in tensors."""

    def __init__(self, transport) -> None:
        self.transport = transport

    def send(self, target, header, tensor) -> None:
        self.transport.send(target, Header(*header.tolist()), tensor)

    def receive(self, source, header, buffer):
        return [_Work(self.transport.post_receive(source, buffer), header)]


class _Work:
    def __init__(self, receipt, header) -> None:
        self.receipt, self.header = receipt, header

    def wait(self) -> None:
        self.header.copy_(torch.tensor(self.receipt.wait()))
