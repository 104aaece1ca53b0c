"""What the engine for GPUs needs of its device: streams beside the one that computes, and the device's own clock.

One object, so that the engine holds no call into CUDA and runs in tests on a stand-in. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from crosspipe.execute.cuda_wire import DeviceClock


class CudaDevice:
    """A GPU. The stream that is current when this is made computes; `clock` stamps, queues and waits on the device."""

    def __init__(self, device: torch.device, common_now: Callable[[], int], *, longest_wait_ns: int) -> None:
        self.device = device
        self.clock = DeviceClock(device, common_now, longest_wait_ns=longest_wait_ns)
        self._computing = torch.cuda.current_stream(device)
        self._beside: dict[Hashable, torch.cuda.Stream] = {}
        self._aside = torch.cuda.Stream(device)  # of nothing that a plan does

    def set_clock(self) -> None:
        """Sets the device's clock anew; between iterations."""
        self.clock.set()

    @contextmanager
    def beside(self, name: Hashable, *, behind: bool) -> Iterator[None]:
        """Makes another stream the current one; with `behind` it goes on only after what has been launched so far."""
        if name not in self._beside:
            self._beside[name] = torch.cuda.Stream(self.device)
        stream = self._beside[name]
        if behind:
            stream.wait_stream(self._computing)
        with torch.cuda.stream(stream):
            yield

    def mark(self) -> torch.cuda.Event:
        """A place in the current stream."""
        event = torch.cuda.Event()
        event.record()
        return event

    def after(self, mark: torch.cuda.Event) -> None:
        """The current stream goes on only after that place."""
        torch.cuda.current_stream(self.device).wait_event(mark)

    def done(self, mark: torch.cuda.Event) -> bool:
        """Whether the device has come past that place."""
        return mark.query()

    def peek(self, notes: Tensor) -> list[Any]:
        """What stands in `notes` now, whatever all other streams are waiting for."""
        with torch.cuda.stream(self._aside):
            return notes.tolist()

    def keep(self, tensor: Tensor) -> None:
        """The memory of `tensor` is not reused before the current stream gets here."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """The host waits for everything."""
        torch.cuda.synchronize(self.device)
