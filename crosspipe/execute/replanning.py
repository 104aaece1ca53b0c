"""A plan made anew while it runs: links as the run's own messages find them, another search, and a swap.

Nothing is sent for it and nobody waits for it. What the ranks note of their iterations says what a message across sites
took; where that has changed, a process of the lowest priority searches for the schedule again, and what it finds takes
over between two iterations. Alpha stays what it was measured to be, the rest of a message's time is the wire's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from crosspipe.errors import StageFailed
from crosspipe.execute.lifeline import die_with
from crosspipe.execute.lowering import lower_point
from crosspipe.execute.partial import trace_file
from crosspipe.execute.plan import Plan
from crosspipe.execute.spec import Point, Session
from crosspipe.execute.trace import Trace, TracedMessage
from crosspipe.problem import Hop, Problem
from crosspipe.schedule import Schedule
from crosspipe.store import load, save

WINDOW = 3  # iterations that are looked at
FEWEST = 3  # messages that must have been seen of a wire
SEARCH_S = 10.0


class Replanner:
    """A source of plans (`crosspipe.execute.swap`), to be asked on rank 0 of a run.

    `problem` and `schedule` are those of the running plan. Where the wires' messages take another time than planned, by
    more than `above` of it, as many iterations more are awaited, since a link may change in the middle of one, and a
    search begins with what they took. Raises StageFailed for a search that fails.
    """

    def __init__(
        self, session: Session, number: int, point: Point, problem: Problem, schedule: Schedule, *, above: float
    ) -> None:
        self._session, self._problem, self._name, self._above = session, problem, schedule.name, above
        self._files = [_Tail(trace_file(session, number, point, rank)) for rank in range(problem.stages)]
        self._directory = Path(session.directory) / f"point{number}.replanned"
        self._recent: deque[tuple[Trace, ...]] = deque(maxlen=WINDOW)
        self._noticed = False
        self._search: subprocess.Popen[bytes] | None = None

    def __call__(self, iteration: int) -> Plan | None:
        """A plan that a search has found since the last time; None where there is none."""
        self._recent.extend(self._noted())
        if self._search is not None:
            return self._found() if self._search.poll() is not None else None
        if len(self._recent) < WINDOW:
            return None
        seen = as_seen(self._problem, self._recent)
        noticed, self._noticed = self._noticed, farthest(self._problem, seen) > self._above
        if noticed and self._noticed:
            print(f"iteration {iteration}: links have changed, {words(self._problem, seen)}", flush=True)
            self._problem, self._noticed = seen, False
            self._begin()
        elif self._noticed:
            self._recent.clear()
        return None

    def close(self) -> None:
        """Ends a search that still goes on."""
        if self._search is not None and self._search.poll() is None:
            self._search.kill()
            self._search.wait()

    def _noted(self) -> list[tuple[Trace, ...]]:
        """Iterations that all ranks have noted since the last time."""
        for file in self._files:
            file.read()
        whole = min(len(file.traces) for file in self._files)
        return [tuple(file.traces.popleft() for file in self._files) for _ in range(whole)]

    def _begin(self) -> None:
        self._directory.mkdir(exist_ok=True)
        problem = save(self._directory / "problem.json", self._problem)
        command = [
            *("nice", "-n", "19", sys.executable, "-m", "crosspipe.cli", "solve", str(problem)),
            *("-s", self._name, "-o", str(self._directory / "schedule.json")),
            *(f"--time-limit={SEARCH_S:g}", "--workers=1"),
        ]
        parent = os.getpid()
        with (self._directory / "search.log").open("wb") as log:
            self._search = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: die_with(parent, signal.SIGKILL),
            )

    def _found(self) -> Plan:
        search, self._search = self._search, None
        assert search is not None
        if search.returncode:
            said = (self._directory / "search.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise StageFailed(f"the search for a new plan ended with {search.returncode}: {' '.join(said)}")
        return lower_point(self._session, self._problem, load(self._directory / "schedule.json", Schedule))


class _Tail:
    """The iterations of one rank's file, as it grows."""

    def __init__(self, path: Path) -> None:
        self.traces: deque[Trace] = deque()
        self._path, self._read = path, 0

    def read(self) -> None:
        """Takes what has come since, whole lines only."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if line.endswith(b"\n"):
                self._read += len(line)
                self.traces.append(msgspec.json.decode(line, type=Trace))


def as_seen(problem: Problem, iterations: Iterable[Sequence[Trace]]) -> Problem:
    """`problem` with the wires' hops as the messages of some iterations found them; `iterations[i][stage]`.

    A message begins when it is ready and the one before it on its wire was served. When it came is known where its
    rank stood waiting for it. A wire of which fewer than FEWEST were seen stays as it is.
    """
    took: dict[str, list[int]] = {wire: [] for wire in problem.wires}
    for traces in iterations:
        messages = sorted((m for trace in traces for m in trace.messages), key=lambda m: m.ready_ns)
        for wire, times in took.items():
            times += _times(problem, wire, [m for m in messages if _wire(problem, m) == wire])
    known = {wire: round(median(times)) for wire, times in took.items() if len(times) >= FEWEST}

    def seen(hop: Hop) -> Hop:
        if hop.wire not in known:
            return hop
        latency = min(hop.latency_ns, known[hop.wire])
        return msgspec.structs.replace(hop, latency_ns=latency, serialisation_ns=known[hop.wire] - latency)

    return msgspec.structs.replace(
        problem,
        forward_hops=tuple(map(seen, problem.forward_hops)),
        backward_hops=tuple(map(seen, problem.backward_hops)),
    )


def _times(problem: Problem, wire: str, messages: Sequence[TracedMessage]) -> list[int]:
    """What each of a wire's messages took by itself, of those where that can be told."""
    times = []
    served: int | None = 0  # when the wire was done with the one before; None: nobody saw it come
    for m in messages:
        hop = problem.message_hop(m.message.kind, m.message.position)
        assert hop is not None
        if m.arrival_ns <= m.ready_ns:
            served = None
            continue
        if served is not None:
            times.append(m.arrival_ns - max(m.ready_ns, served))
        served = m.arrival_ns - hop.latency_ns
    return times


def _wire(problem: Problem, m: TracedMessage) -> str | None:
    if m.message.kind not in ("F", "D"):
        return None
    hop = problem.message_hop(m.message.kind, m.message.position)
    return None if hop is None else hop.wire


def _crossing(problem: Problem) -> list[Hop]:
    return [hop for hop in (*problem.forward_hops, *problem.backward_hops) if hop.wire is not None]


def farthest(planned: Problem, seen: Problem) -> float:
    """The largest share by which a message across sites takes longer or shorter than planned."""
    pairs = zip(_crossing(planned), _crossing(seen), strict=True)
    return max((abs(new.delay_ns / old.delay_ns - 1) for old, new in pairs if old.delay_ns), default=0.0)


def words(planned: Problem, seen: Problem) -> str:
    """What a message on each wire takes now and was planned to take."""
    pairs = {old.wire: (old, new) for old, new in zip(_crossing(planned), _crossing(seen), strict=True)}
    return ", ".join(
        f"{wire}: {new.delay_ns / 1e6:.1f} ms instead of {old.delay_ns / 1e6:.1f} ms"
        for wire, (old, new) in sorted(pairs.items())
    )
