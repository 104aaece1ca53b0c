"""The iterations of one point, one after the other, and what happens between them: swaps before, notes after.

Nothing here is timed: what `before` and `after` do lies between the last event of an iteration and the agreed start of
the next. Nothing is kept here either: what is to last, `after` notes down.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence

from crosspipe.execute.engine import Engine
from crosspipe.execute.trace import Trace

Before = Callable[[int], None]  # the iteration to come
After = Callable[[Trace], None]  # the iteration that has ended, optimizer step included


def run_iterations(
    engine: Engine, indices: Iterable[int], *, before: Sequence[Before] = (), after: Sequence[After] = ()
) -> None:
    """Executes all iterations. Collective, and so is what `before` and `after` do if they talk to other ranks.

    The garbage collector, switched off by the worker, runs between iterations only.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # what stands now is not looked at again
    for index in indices:
        for prepare in before:
            prepare(index)
        trace = engine.iterate(index)
        for note in after:
            note(trace)
        gc.collect()
