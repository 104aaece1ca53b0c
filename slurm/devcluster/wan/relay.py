"""One direction of a wide-area link: packets from one TUN device to another, after delay, wire and loss.

A process per direction, with the two devices as inherited file descriptors; it does nothing but this. The wire serves
packets one after the other at its rate, in front of it a queue that drops what would wait too long; then the delay.
SIGHUP makes it read its settings again. SIGSTOP is a partition, SIGCONT its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import sys
import time
from collections import deque
from pathlib import Path

from link import Link

_BATCH = 64  # packets read before what is due is sent on
_WANDER_S = 0.005  # how long one value of the jitter holds
_LATE_S = 0.001  # a packet sent on this much after its time is counted


class Relay:
    """The state of one direction."""

    def __init__(self, source: int, target: int, settings: Path, counts: Path, seed_offset: int) -> None:
        self._source, self._target = source, target
        self._settings, self._counts = settings, counts
        self._link = Link.read(settings)
        self._random = random.Random(2 * self._link.seed + seed_offset)
        self._reread = False
        self.counted = dict.fromkeys(("packets", "bytes", "lost", "dropped", "late"), 0) | {"latest_ms": 0.0}
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "_reread", True))

    def forever(self) -> None:
        """Forwards until the process is ended."""
        queue: deque[tuple[float, bytes]] = deque()
        draw, read, write, clock = self._random.random, os.read, os.write, time.monotonic
        link, counted = self._link, self.counted
        wire_free_s = last_due_s = jitter_until_s = jitter_s = next_count_s = 0.0
        while True:
            wait_s = max(0.0, queue[0][0] - clock()) if queue else 1.0
            ready = select.select((self._source,), (), (), wait_s)[0]
            if self._reread:
                self._reread, link = False, Link.read(self._settings)
            if ready:
                now_s = clock()
                loss, delay_s, longest_s = link.loss_percent / 100, link.delay_ms / 1e3, link.queue_ms / 1e3
                byte_s = 1 / link.bytes_per_s(now_s)
                if link.jitter_ms and now_s > jitter_until_s:
                    jitter_s, jitter_until_s = (2 * draw() - 1) * link.jitter_ms / 1e3, now_s + _WANDER_S
                for _ in range(_BATCH):
                    try:
                        packet = read(self._source, 65536)
                    except BlockingIOError:
                        break
                    counted["packets"] += 1
                    counted["bytes"] += len(packet)
                    if loss and draw() < loss:
                        counted["lost"] += 1
                        continue
                    start_s = wire_free_s if wire_free_s > now_s else now_s
                    if start_s - now_s > longest_s:
                        counted["dropped"] += 1
                        continue
                    wire_free_s = start_s + len(packet) * byte_s
                    due_s = wire_free_s + delay_s + jitter_s
                    last_due_s = due_s if due_s > last_due_s else last_due_s
                    queue.append((last_due_s, packet))
            now_s = clock()
            while queue and queue[0][0] <= now_s:
                due_s, packet = queue.popleft()
                if now_s - due_s > _LATE_S:
                    counted["late"] += 1
                    counted["latest_ms"] = max(counted["latest_ms"], round((now_s - due_s) * 1e3, 3))
                try:
                    write(self._target, packet)
                except BlockingIOError:  # the receiving host does not keep up: its card drops, too
                    counted["dropped"] += 1
            if now_s > next_count_s:
                next_count_s = now_s + 1.0
                self._write_counts()

    def _write_counts(self) -> None:
        temporary = self._counts.with_suffix(".new")
        temporary.write_text(json.dumps(self.counted) + "\n")
        temporary.replace(self._counts)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):  # a network waits for no core, while ranks of MPI spin on all
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    directory, name, own_fd, other_fd = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    Relay(own_fd, other_fd, directory / "link.json", directory / f"{name}.json", int(name[-1])).forever()
