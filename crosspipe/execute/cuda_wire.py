"""Emulated links on a GPU: three small kernels that stamp, queue and wait on the device's own clock.

The host only launches them; it neither waits for the device nor patches PyTorch. `depart` runs on the stream that
sends, right after the block, and writes the message's header by the same rule as `crosspipe.execute.emulation`;
`arrive` runs on the stream that computes, right after the data has come, and spins until the header allows. The clock
is `%globaltimer`, set against the host's every few seconds. Compiled at run time by NVRTC. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from crosspipe.errors import FieldError
from crosspipe.execute.transport import Header

HEADER = len(Header._fields)  # number, ready, start, served, not before
ARRIVAL = 2 + HEADER  # received, resumed, and the header as it came but for its last field: when it counted

# 64-bit constants come in a tensor: the launcher passes Python integers as 32 bits. `delay` is (number, serialisation,
# latency), `clock` is (offset to the common time, longest spin), all in ns; `wire` is when the wire is free.
SOURCE = r"""
typedef long long ns;

__device__ ns now(const ns *clock) {
    ns time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time + clock[0];
}

extern "C" __global__ void stamp(ns *out, const ns *clock) { *out = now(clock); }

extern "C" __global__ void depart(const ns *ready, ns *wire, const ns *delay, ns *header) {
    ns start = *ready > *wire ? *ready : *wire;
    ns served = start + delay[1];
    *wire = served;
    header[0] = delay[0];
    header[1] = *ready;
    header[2] = start;
    header[3] = served;
    header[4] = served + delay[2];
}

extern "C" __global__ void arrive(const ns *header, const ns *posted, ns *arrival, const ns *clock) {
    ns time = now(clock), limit = time + clock[1];
    arrival[0] = time;
    // no byte of a real message moves before its receive is posted, and then it still has the whole way to go
    ns late = *posted + header[4] - header[2], until = late > header[4] ? late : header[4];
    while (time < until && time < limit) {
        __nanosleep(100);
        time = now(clock);
    }
    arrival[1] = time;
    for (int i = 0; i < 4; i++) arrival[2 + i] = header[i];
    arrival[6] = until;
}
"""


class DeviceClock:
    """The device's `%globaltimer` as common time: stamps, and the kernels of emulated wires.

    `common_now()` is the host's common time in ns (`Clock.now`). `longest_wait_ns` bounds every spin, so that a wrong
    header ends in a late message and not in a device that hangs. `error_ns` bounds how far the setting can be off.
    Raises FieldError where kernels cannot be compiled.
    """

    def __init__(self, device: torch.device, common_now: Callable[[], int], *, longest_wait_ns: int) -> None:
        self.device = device
        self._stamp, self._depart, self._arrive = (_compile(name) for name in ("stamp", "depart", "arrive"))
        self._clock = torch.tensor([0, longest_wait_ns], dtype=torch.int64, device=device)
        self._common_now = common_now
        self.set()

    def set(self) -> None:
        """Sets it against the host's clock, whose time drifts away from it. To be called while the device is idle."""
        offset, self.error_ns = self._measure(self._common_now)
        self._clock[0] = offset

    def stamp(self, out: Tensor) -> None:
        """Writes the time at which the current stream gets here into `out` (int64, one value)."""
        self._stamp(args=[out, self._clock])

    def depart(self, ready: Tensor, wire: Tensor, delay: Tensor, header: Tensor) -> None:
        """Puts a message behind all earlier ones of `wire` and writes its header, on the current stream.

        All int64 on the device: `ready` and `wire` one value, `delay` (number, serialisation, latency), `header` 5.
        """
        self._depart(args=[ready, wire, delay, header])

    def arrive(self, header: Tensor, posted: Tensor, arrival: Tensor) -> None:
        """Holds the current stream until the message counts as arrived, by its header and by when it was `posted`.

        Notes received, resumed, the header's first four fields and that moment in `arrival`.
        """
        self._arrive(args=[header, posted, arrival, self._clock])

    def _measure(self, common_now: Callable[[], int], trials: int = 50) -> tuple[int, int]:
        """(offset, half the round trip) of the fastest of many stamps between two looks at the host's clock."""
        out = torch.zeros(1, dtype=torch.int64, device=self.device)
        best: tuple[int, int] | None = None
        for _ in range(trials):
            torch.cuda.synchronize(self.device)
            before = common_now()
            self.stamp(out)
            torch.cuda.synchronize(self.device)
            after = common_now()
            found = (after - before) // 2, (before + after) // 2 - int(out)
            best = found if best is None else min(best, found)
        assert best is not None
        return best[1], best[0]


def delay_errors(clock: DeviceClock, delay_ns: int, repetitions: int) -> list[int]:
    """How much later than planned (ns) a stream that waits for `delay_ns` went on, by the device's clock.

    A message of its own for every repetition, on an otherwise idle device; the delay must exceed a launch.
    """
    ready, wire, posted = (torch.zeros(1, dtype=torch.int64, device=clock.device) for _ in range(3))
    delay = torch.tensor([0, 0, delay_ns], dtype=torch.int64, device=clock.device)
    header = torch.zeros(HEADER, dtype=torch.int64, device=clock.device)
    arrivals = torch.zeros(repetitions, ARRIVAL, dtype=torch.int64, device=clock.device)
    for arrival in arrivals:
        clock.stamp(ready)
        clock.depart(ready, wire, delay, header)
        clock.arrive(header, posted, arrival)
    return [resumed - planned for _, resumed, *_, planned in arrivals.tolist()]


def _compile(name: str) -> Callable[..., Any]:
    """The kernel `name` of `SOURCE`."""
    if not hasattr(torch.cuda, "_compile_kernel"):
        raise FieldError("torch", torch.__version__, "cannot compile kernels at run time", "use torch 2.9 or newer")
    try:
        return torch.cuda._compile_kernel(SOURCE, name)
    except OSError as error:  # torch looks for the toolkit's headers, though none are used
        raise FieldError(
            "CUDA_HOME", None, f"the CUDA toolkit is not found ({error})", "load the site's CUDA module, or export it"
        ) from error
