"""A point over several starts of the ranks: what one that was ended leaves behind, and where the next one goes on.

In the folder `Point.kept` every rank notes its iterations as they end, and now and then all save the training state. It
is nobody's result, unlike `run.checkpoint_dir`: who started the ranks removes it once the point has its record.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from safetensors import SafetensorError
from torch import Tensor

from crosspipe.errors import CrosspipeError
from crosspipe.execute.partial import TraceLog, read_traces
from crosspipe.execute.trace import Trace
from crosspipe.execute.training import Checkpoints
from crosspipe.execute.transport import Transport
from crosspipe.store import load, save

_SHARE = 20  # a save may take 1/20 of the time between two of them, at most


class Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="continuation"):
    """What a rank's iterations do not say: its gradients' error in the first of them, and after how many iterations the
    ranks were started again, each time."""

    schema: int = 1
    gradient_relative_error: float | None = None
    continued_after: tuple[int, ...] = ()


class Past(NamedTuple):
    """What earlier starts left on one rank: `done` iterations are in the training state, from the model's first on.

    `traces` has the run's own, perhaps some more than are in the state: those are trained again, and not noted again.
    """

    done: int
    traces: tuple[Trace, ...]
    note: Note


NOTHING = Past(0, (), Note())


class Continuation:
    """One rank's end of it. `begin`, `due` and `save` have one answer on all ranks; `begin` and `save` are collective.

    The state is saved where at least `every_s` have passed since the ranks began or last saved, and 20 times what
    that took. So a run that takes less than `every_s` is never saved.
    """

    def __init__(self, checkpoints: Checkpoints, log: Path, transport: Transport, *, every_s: float) -> None:
        self._checkpoints, self._directory, self._transport = checkpoints, checkpoints.directory, transport
        self._path = log
        self._least_ns = self._every_ns = round(every_s * 1e9)
        self._since_ns: int | None = None
        self._note = Note()

    def begin(self) -> Past:
        """Puts back what an earlier start left; NOTHING, and an empty folder, where that is nothing whole."""
        found: tuple[int, dict[str, Tensor]] | None = None
        past = NOTHING
        try:
            found = self._checkpoints.find()
            if found is not None:
                past = self._read(found[0])
        except (CrosspipeError, SafetensorError, msgspec.DecodeError, OSError) as error:
            print(f"what an earlier start left cannot be used: {error}", flush=True)
        noted = [int(row) for row in self._transport.allgather(str(len(past.traces)).encode())]
        if found is None or min(noted) == 0:
            self._begin_anew()
            return NOTHING
        self._checkpoints.go_on(*found)
        self._note = msgspec.structs.replace(past.note, continued_after=(*past.note.continued_after, past.done))
        return Past(past.done, past.traces[: min(noted)], self._note)

    def due(self, trace: Trace) -> bool:
        """Whether the state is to be saved after this iteration; its beginning and end are the same for all ranks."""
        if self._since_ns is None:
            self._since_ns = trace.begin_ns
        return trace.blocks_end_ns - self._since_ns >= self._every_ns

    def save(self, iterations: int, log: TraceLog, gradient_relative_error: float | None) -> None:
        """Saves what the next start needs: the iterations, `log`, first."""
        began_s = time.monotonic()
        log.sync()
        self._note = msgspec.structs.replace(self._note, gradient_relative_error=gradient_relative_error)
        save(self._file(), self._note)
        self._checkpoints.save(iterations)
        spent_s = max(float(row) for row in self._transport.allgather(str(time.monotonic() - began_s).encode()))
        self._every_ns = max(self._least_ns, round(_SHARE * spent_s * 1e9))
        self._since_ns = None

    def _read(self, done: int) -> Past:
        """This rank's iterations; NOTHING where fewer were noted than are in the training state."""
        traces = tuple(read_traces(self._path))
        if not traces or traces[-1].index + 1 < done:
            return NOTHING
        return Past(done, traces, load(self._file(), Note))

    def _begin_anew(self) -> None:
        if self._transport.rank == 0:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._transport.allgather(b"")
        self._directory.mkdir(parents=True, exist_ok=True)

    def _file(self) -> Path:
        return self._directory / f"rank{self._transport.rank}.json"
