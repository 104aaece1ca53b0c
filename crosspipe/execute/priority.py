"""Who runs first where ranks share cores: what keeps time goes before what computes.

A rank that waits for a moment, or for a message, should go on when it comes. Where every core computes for another
rank the kernel lets it wait for that one's slice first, for milliseconds. So waits, and the threads that carry
messages, run at real-time priority, mathematics at the ordinary one. The system must allow it (root, or a limit
RLIMIT_RTPRIO of 1 and more: `ulimit -r`); where it does not, all run alike, and the record says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PROMPT = os.SCHED_FIFO, os.sched_param(1)
_ORDINARY = os.SCHED_OTHER, os.sched_param(0)
WORDS = {
    True: "waits and messages at real-time priority",
    False: "ordinary priority for all (RLIMIT_RTPRIO allows no other)",
}


def is_prompt() -> bool:
    """Whether this thread runs at real-time priority."""
    return os.sched_getscheduler(0) == os.SCHED_FIFO


def may_be_prompt() -> bool:
    """Whether the system allows this process real-time priority."""
    with promptly():
        return is_prompt()


@contextmanager
def promptly(wanted: bool = True) -> Iterator[None]:
    """This thread, and threads that it starts meanwhile, at real-time priority, where the system allows it.

    Nothing changes where it is not `wanted`.
    """
    if not wanted or is_prompt():
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, *_PROMPT)
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


@contextmanager
def patiently() -> Iterator[None]:
    """Within `promptly`: this thread at ordinary priority meanwhile. Elsewhere nothing changes."""
    if not is_prompt():
        yield
        return
    os.sched_setscheduler(0, *_ORDINARY)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *_PROMPT)
