"""Replicas of a whole pipeline: which rank is what, and one replica's view of the transport.

Ranks are numbered replica by replica: rank = replica * stages + stage. The plan of one replica serves all; they share
the wires across sites, and meet for gradients and parameters only (`crosspipe.execute.training_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from crosspipe.execute.trace import Trace
from crosspipe.problem import Hop, Problem

if TYPE_CHECKING:  # what watches a run and reads its traces needs no torch
    from torch import Tensor

    from crosspipe.execute.groups import Group
    from crosspipe.execute.transport import Header, Receipt, Transport


class Circles:
    """The groups of ranks of a session, opened once each. `open_group` is collective over all ranks."""

    def __init__(self, rank: int, open_group: Callable[[Sequence[int]], Group]) -> None:
        self._rank, self._open = rank, open_group
        self._known: dict[tuple[int, ...], Group] = {}

    def of(self, circles: Sequence[Sequence[int]]) -> Group | None:
        """The group of this rank's circle; None if it is in none, or alone. Collective: all give the same circles."""
        found = None
        for circle in map(tuple, circles):
            if len(circle) == 1:
                continue
            if circle not in self._known:
                self._known[circle] = self._open(circle)
            if self._rank in circle:
                found = self._known[circle]
        return found


class Pipeline:
    """The transport as one replica's engine sees it: peers are stages, meetings are of all ranks."""

    def __init__(self, transport: Transport, stages: int) -> None:
        replica, self.rank = divmod(transport.rank, stages)
        self._transport, self._first = transport, replica * stages
        self.size = stages

    @property
    def timeout_s(self) -> float:
        """See `crosspipe.execute.transport.Transport`."""
        return self._transport.timeout_s

    def post_receive(self, source: int, buffer: Tensor) -> Receipt:
        """See `crosspipe.execute.transport.Transport`."""
        return self._transport.post_receive(self._first + source, buffer)

    def send(self, target: int, header: Header, tensor: Tensor) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        self._transport.send(self._first + target, header, tensor)

    def flush(self) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        self._transport.flush()

    def allgather(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, of all replicas: when to begin and the norm concern them all."""
        return self._transport.allgather(payload)

    def close(self) -> None:
        """See `crosspipe.execute.transport.Transport`."""
        self._transport.close()


class OnePipeline(Pipeline):
    """The same, with meetings of one replica only: for comparing its channels."""

    def allgather(self, payload: bytes) -> list[bytes]:
        """The payloads of this replica's stages. Collective over all ranks."""
        return self._transport.allgather(payload)[self._first :][: self.size]


def places(problem: Problem, replicas: int) -> list[int]:
    """Ranks that hold the first or the last position, of all replicas: those that share a tied embedding."""
    stages = {problem.place(position)[0] for position in (0, problem.positions - 1)}
    return sorted(r * problem.stages + stage for r in range(replicas) for stage in stages)


def senders(wire_senders: dict[str, tuple[int, ...]], stages: int, replicas: int) -> dict[str, tuple[int, ...]]:
    """The ranks of all replicas that send over each wire, given one replica's stages."""
    return {
        wire: tuple(r * stages + stage for r in range(replicas) for stage in ranks)
        for wire, ranks in wire_senders.items()
    }


def one_share(problem: Problem, replicas: int) -> Problem:
    """The Problem with one replica's bytes on the wires that all share.

    A Problem's hops carry what crosses for all replicas together; each replica's message occupies its share of that.
    """

    def share(hop: Hop | None) -> Hop | None:
        if hop is None or hop.wire is None:
            return hop
        return msgspec.structs.replace(hop, serialisation_ns=-(-hop.serialisation_ns // replicas))

    return msgspec.structs.replace(
        problem,
        forward_hops=tuple(map(share, problem.forward_hops)),
        backward_hops=tuple(map(share, problem.backward_hops)),
        data_parallel=tuple(
            tuple(msgspec.structs.replace(d, reduce=share(d.reduce), gather=share(d.gather)) for d in row)
            for row in problem.data_parallel
        ),
    )


def of_one_pipeline(traces: Sequence[Sequence[Trace]], stages: int) -> list[list[Trace]]:
    """`traces[stage][i]` of the first replica, from `traces[rank][i]` of all; losses are means over the replicas."""

    def mean(same: Sequence[Trace]) -> Trace:
        losses = [trace.loss for trace in same if trace.loss is not None]
        return msgspec.structs.replace(same[0], loss=sum(losses) / len(losses)) if losses else same[0]

    return [[mean(same) for same in zip(*traces[stage::stages], strict=False)] for stage in range(stages)]
