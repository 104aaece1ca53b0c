"""The Timeline: when each block and message happened. `simulate` predicts one, a run measures one: the same type."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crosspipe.problem import Problem
from crosspipe.problem.traversal import place_of, position_of
from crosspipe.schedule.order import Block, Message

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TimedBlock(NamedTuple):
    """A block with its start and end in ns since the timeline's zero."""

    block: Block
    start_ns: int
    end_ns: int


class TimedMessage(NamedTuple):
    """A message: ready (block's end), start of service by its wire, end of service, arrival; ns since zero."""

    message: Message
    wire: str | None
    ready_ns: int
    start_ns: int
    served_ns: int
    arrival_ns: int


class PathStep(NamedTuple):
    """One step of a critical path: `kind` is "block", "message" or "wait"; `label` in words; times in ns."""

    kind: str
    label: str
    stage: int
    start_ns: int
    end_ns: int
    crosses_sites: bool = False


class Timeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="timeline"):
    """Start and end of every block (`blocks[stage]`, in order) and message; memory steps `memory[stage]`.

    A memory step is (time_ns, bytes held from then on). `origin` is "simulated", "emulated", "shaped TCP" or
    "real link". `makespan_ns` runs from the first event to the last.
    """

    schema: int = 1
    traversal: str
    stages: int
    chunks: int
    microbatches: int
    sites: tuple[int, ...]
    blocks: tuple[tuple[TimedBlock, ...], ...]
    messages: tuple[TimedMessage, ...] = ()
    memory: tuple[tuple[tuple[int, int], ...], ...] = ()
    origin: str = "simulated"

    @property
    def start_ns(self) -> int:
        """First event, in ns."""
        firsts = [row[0].start_ns for row in self.blocks if row]
        return min(firsts + [m.ready_ns for m in self.messages if m.message.kind == "gather"], default=0)

    @property
    def end_ns(self) -> int:
        """Last event, in ns."""
        lasts = [row[-1].end_ns for row in self.blocks if row]
        return max(lasts + [m.arrival_ns for m in self.messages], default=0)

    @property
    def makespan_ns(self) -> int:
        """From the first event to the last, in ns."""
        return self.end_ns - self.start_ns

    def peak_memory_bytes(self) -> tuple[int, ...]:
        """Largest activation memory of each stage."""
        return tuple(max((held for _, held in steps), default=0) for steps in self.memory)

    def busy_ns(self, stage: int) -> int:
        """Time a stage spends in blocks."""
        return sum(b.end_ns - b.start_ns for b in self.blocks[stage])

    def bubble_ratio(self, stage: int) -> float:
        """Idle time of a stage over the makespan."""
        return 1 - self.busy_ns(stage) / self.makespan_ns if self.makespan_ns else 0.0

    def position(self, stage: int, chunk: int) -> int:
        """Position of (stage, chunk)."""
        return position_of(self.traversal, self.stages, stage, chunk)

    def crosses_sites(self, message: Message) -> bool:
        """Whether a message leaves its site."""
        if message.kind not in ("F", "D"):
            return False
        here = place_of(self.traversal, self.stages, message.position)[0]
        other = message.position + (1 if message.kind == "F" else -1)
        return self.sites[here] != self.sites[place_of(self.traversal, self.stages, other)[0]]

    def critical_path(self) -> tuple[PathStep, ...]:
        """The blocks, messages and waits that fill the time from the first event to the last; see `critical`."""
        from crosspipe.schedule.critical import critical_path

        return critical_path(self)

    def plot(self, *, width_in: float = 12.0, memory: bool = False) -> Figure:
        """A matplotlib figure of this timeline: a row a stage; `memory` adds the activations each holds."""
        from crosspipe.schedule.drawing import draw_timeline

        return draw_timeline(self, width_in=width_in, memory=memory)


def in_ready_order(timed: TimedMessage) -> tuple[int, int, bool, int, str]:
    """Sort key of a timeline's messages, and of service on a first come first served wire: ready time, then
    microbatch, D before F, position."""
    kind, position, microbatch = timed.message
    return timed.ready_ns, microbatch, kind == "F", position, kind


def memory_steps(problem: Problem, blocks: tuple[TimedBlock, ...], stage: int) -> tuple[tuple[int, int], ...]:
    """Activation memory of a stage over time as steps (time_ns, bytes held from then on).

    Blocks of a stage follow one another, so walking them in order already puts a release before a take of equal time.
    """
    held, steps = 0, []
    for (kind, chunk, _, piece, pieces), start, end in blocks:
        cost = problem.costs[stage][chunk]
        for time, change in (
            (start, cost.take_bytes(kind) if piece == 0 else 0),
            (end, -cost.release_bytes(kind, piece, pieces)),
        ):
            if change:
                held += change
                steps.append((time, held))
    return tuple(steps)
