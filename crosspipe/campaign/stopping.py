"""SIGTERM and Slurm's warning while a search works: they reach it as the interrupt that a search answers at once.

A search answers an interrupt with its best so far, which is not what was asked for: so the signal's own answer, which
ends the job or goes on with it later, is given right after.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)  # cancelled, warned


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """In the block, whichever of SIGNALS has a handler raises KeyboardInterrupt first, and calls that handler after.

    Only the main thread hears signals; in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not heard:
            heard.append(number)
            signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    theirs = {number: handler for number, handler in before.items() if callable(handler)}
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c == signal.SIG_IGN and theirs:  # as jobs do
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in theirs:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGINT, ctrl_c)
        for number in heard:
            theirs[signal.Signals(number)](number, None)
