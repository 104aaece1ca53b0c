"""A binary heap of (ready time, tie-break) pairs in an integer array, for compiled code, which has no `heapq`."""

from __future__ import annotations

import numpy as np

from crosspipe.schedule.compiling import compiled
from crosspipe.schedule.encoding import Ints


@compiled
def grown(heap: Ints) -> Ints:
    """The same heap with twice the room."""
    bigger = np.empty((2 * len(heap), 2), dtype=np.int64)
    for i in range(len(heap)):
        bigger[i, 0], bigger[i, 1] = heap[i, 0], heap[i, 1]
    return bigger


@compiled
def push(heap: Ints, size: int, ready: int, tie: int) -> None:
    """Adds (ready, tie) to a binary heap of `size` entries."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent, 0] < ready or (heap[parent, 0] == ready and heap[parent, 1] < tie):
            break
        heap[child, 0], heap[child, 1] = heap[parent, 0], heap[parent, 1]
        child = parent
    heap[child, 0], heap[child, 1] = ready, tie


@compiled
def pop(heap: Ints, size: int) -> None:
    """Removes the least entry of a binary heap; `size` entries are left."""
    ready, tie = heap[size, 0], heap[size, 1]
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        right = child + 1
        if right < size and (
            heap[right, 0] < heap[child, 0] or (heap[right, 0] == heap[child, 0] and heap[right, 1] < heap[child, 1])
        ):
            child = right
        if ready < heap[child, 0] or (ready == heap[child, 0] and tie < heap[child, 1]):
            break
        heap[hole, 0], heap[hole, 1] = heap[child, 0], heap[child, 1]
        hole = child
    heap[hole, 0], heap[hole, 1] = ready, tie
