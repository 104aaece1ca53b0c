"""Whether the user pressed Ctrl-C, also where a search has caught it and returned its best.

Not a way to stop anything: a search stops because of the KeyboardInterrupt that is raised as ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def watched() -> Iterator[threading.Event]:
    """An event that is set once SIGINT arrives. Never where it is ignored, nor outside the main thread, which alone
    takes signals."""
    pressed = threading.Event()

    def handler(number: int, frame: FrameType | None) -> NoReturn:
        pressed.set()
        raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
