"""The Problem: everything a schedule is judged against, immutable and hashed by content.

It knows the traversal, the cost of each block, the hop of each boundary in both directions, the memory limit of each
stage and, optionally, data parallelism. It does not know any order. `Problem.uniform` is sugar for identical stages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from crosspipe.errors import FieldError, Infeasible
from crosspipe.problem.costs import BlockCost, split
from crosspipe.problem.links import Hop
from crosspipe.problem.traversal import check_traversal, place_of, position_of

MICROBATCH_UNITS = 2**20  # what one microbatch's activations weigh on a stage in Problem.uniform


class DataParallel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradient reduction of one (stage, chunk), after its last W; with ZeRO-1 also the all-gather before its first F.

    Both occupy their wire and count in the makespan.
    """

    reduce: Hop
    gather: Hop | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="problem"):
    """One iteration of pipeline training, to be ordered.

    `costs[stage][chunk]`; `forward_hops[k]` leads from position k to k+1 and `backward_hops[k]` from k+1 to k
    (positions - 1 of each; all zero where both positions are on one stage). `activation_limit_bytes[stage]` is None
    where nothing limits. `weight_grad_pieces` > 1 allows W to run in that many pieces. `sites[stage]` is only for
    reading: what a message costs stands in the hops. `data_parallel[stage][chunk]` is empty without replicas.
    """

    schema: int = 1
    traversal: str
    stages: int
    chunks: int = 1
    microbatches: int
    costs: tuple[tuple[BlockCost, ...], ...]
    forward_hops: tuple[Hop, ...]
    backward_hops: tuple[Hop, ...]
    activation_limit_bytes: tuple[int | None, ...]
    sites: tuple[int, ...]
    weight_grad_pieces: int = 1
    data_parallel: tuple[tuple[DataParallel, ...], ...] = ()

    def __post_init__(self) -> None:
        check_traversal(self.traversal, self.stages, self.chunks)
        if self.microbatches < 1:
            raise FieldError("microbatches", self.microbatches, "nothing to schedule", "use 1 or more")
        if self.weight_grad_pieces < 1:
            raise FieldError("weight_grad_pieces", self.weight_grad_pieces, "W has at least one piece", "use 1 or more")
        shapes = {
            "costs": (len(self.costs), self.stages),
            "forward_hops": (len(self.forward_hops), self.positions - 1),
            "backward_hops": (len(self.backward_hops), self.positions - 1),
            "activation_limit_bytes": (len(self.activation_limit_bytes), self.stages),
            "sites": (len(self.sites), self.stages),
        }
        for stage, row in enumerate(self.costs):
            shapes[f"costs[{stage}]"] = (len(row), self.chunks)
        if self.data_parallel:
            shapes["data_parallel"] = (len(self.data_parallel), self.stages)
            for stage, replica in enumerate(self.data_parallel):
                shapes[f"data_parallel[{stage}]"] = (len(replica), self.chunks)
        for name, (got, want) in shapes.items():
            if got != want:
                raise FieldError(name, f"{got} entries", f"this problem needs {want}", "give one entry each")
        for position in range(self.positions - 1):
            stage = self.place(position)[0]
            if stage != self.place(position + 1)[0]:
                continue
            for field in ("forward_hops", "backward_hops"):
                hop: Hop = getattr(self, field)[position]
                if hop.delay_ns or hop.wire is not None:
                    raise FieldError(
                        f"{field}[{position}]",
                        f"{hop.delay_ns} ns on wire {hop.wire}",
                        f"positions {position} and {position + 1} are both on stage {stage}",
                        "a hop inside a stage costs nothing and uses no wire",
                    )
        for stage, site in enumerate(self.sites):
            if site < 0:
                raise FieldError(f"sites[{stage}]", site, "is negative", "number the sites from 0")
        for stage, limit in enumerate(self.activation_limit_bytes):
            if limit is not None and limit < 0:
                raise FieldError(f"activation_limit_bytes[{stage}]", limit, "is negative", "give bytes, or null")

    @property
    def positions(self) -> int:
        """Number of places in the traversal: stages * chunks."""
        return self.stages * self.chunks

    def position(self, stage: int, chunk: int) -> int:
        """Position of (stage, chunk)."""
        return position_of(self.traversal, self.stages, stage, chunk)

    def place(self, position: int) -> tuple[int, int]:
        """(stage, chunk) of a position."""
        return place_of(self.traversal, self.stages, position)

    def hop(self, kind: str, position: int) -> Hop | None:
        """The hop of the message that a block of `kind` at `position` sends; None where it sends none.

        F sends to position + 1; D and B send to position - 1. A hop inside one stage is returned too (zero cost).
        """
        if kind == "F":
            return self.forward_hops[position] if position + 1 < self.positions else None
        if kind in ("D", "B"):
            return self.backward_hops[position - 1] if position > 0 else None
        return None

    def message_hop(self, kind: str, position: int) -> Hop | None:
        """The hop of a message: F and D as `hop`, reduce and gather of the (stage, chunk) at `position`; else None."""
        if kind in ("reduce", "gather"):
            if not self.data_parallel:
                return None
            stage, chunk = self.place(position)
            replica = self.data_parallel[stage][chunk]
            return replica.reduce if kind == "reduce" else replica.gather
        return self.hop(kind, position)

    def crosses_sites(self, kind: str, position: int) -> bool:
        """Whether that message leaves its site."""
        other = position + 1 if kind == "F" else position - 1
        return 0 <= other < self.positions and self.sites[self.place(position)[0]] != self.sites[self.place(other)[0]]

    @property
    def wires(self) -> tuple[str, ...]:
        """Names of all wires, sorted."""
        hops = [*self.forward_hops, *self.backward_hops]
        for row in self.data_parallel:
            for replica in row:
                hops += [replica.reduce] + ([replica.gather] if replica.gather else [])
        return tuple(sorted({hop.wire for hop in hops if hop.wire is not None}))

    def forward_reference_ns(self) -> int:
        """T_F in ns: the largest forward time per microbatch of any stage, summed over its chunks."""
        return max(sum(cost.forward_ns for cost in row) for row in self.costs)

    def work_ns(self, stage: int) -> int:
        """Busy time of a stage in ns with split backward: microbatches * sum over chunks of F + D + W."""
        return self.microbatches * sum(c.forward_ns + c.input_grad_ns + c.weight_grad_ns for c in self.costs[stage])

    def check_memory_floor(self) -> None:
        """Raises Infeasible if a stage cannot hold even one microbatch of its chunks, whatever the order."""
        for stage, limit in enumerate(self.activation_limit_bytes):
            if limit is None:
                continue
            # when D of a chunk starts, one microbatch of it and of every earlier chunk is held, whatever the order
            need = held = 0
            for cost in self.costs[stage]:
                held += cost.forward_keep_bytes
                need = max(need, held + cost.input_grad_take_bytes)
            if need > limit:
                raise Infeasible(
                    f"activation_limit_bytes[{stage}] = {limit}: one microbatch needs {need} bytes on stage {stage}; "
                    f"raise the limit to at least {need}, or recompute activations"
                )

    def digest(self) -> str:
        """SHA-256 of the content, hex."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @classmethod
    def uniform(
        cls,
        *,
        traversal: str = "ud",
        stages: int,
        microbatches: int,
        sites: int = 1,
        forward_ms: float,
        input_grad_ms: float,
        weight_grad_ms: float,
        latency_ms: float = 0.0,
        serialisation_ms: float = 0.0,
        memory_microbatches: float | None = None,
        chunks: int | None = None,
        keep: float = 1.0,
        release_input_grad: float = 0.5,
        release_weight_grad: float | None = None,
        weight_grad_pieces: int = 1,
    ) -> Problem:
        """Identical stages on evenly split sites; every boundary across sites has the same latency and serialisation.

        Times are per *stage* in ms; chunks share them evenly, a rounding remainder goes to chunk 0. One microbatch's
        activations are 2**20 bytes on a stage; F keeps `keep` of it, D returns `release_input_grad`, W returns
        `release_weight_grad` (default: the rest of the microbatch); where D and W return more than F keeps, D takes
        the difference at its start. `memory_microbatches` limits every stage (None: no limit).
        """
        if chunks is None:
            chunks = 1 if traversal == "ud" else 2
        check_traversal(traversal, stages, chunks)
        if sites < 1 or stages % sites:
            raise FieldError("sites", sites, f"{stages} stages cannot be split evenly", f"use a divisor of {stages}")
        if release_weight_grad is None:
            release_weight_grad = 1.0 - release_input_grad
        times = {
            "forward": _nanoseconds("forward_ms", forward_ms),
            "input_grad": _nanoseconds("input_grad_ms", input_grad_ms),
            "weight_grad": _nanoseconds("weight_grad_ms", weight_grad_ms),
        }
        if release_input_grad + release_weight_grad < keep:
            raise FieldError("keep", keep, "F keeps more than D and W release", "keep at most what they release")
        units = {
            "keep": _units("keep", keep),
            "release_d": _units("release_input_grad", release_input_grad),
            "release_w": _units("release_weight_grad", release_weight_grad),
        }
        row = []
        for chunk in range(chunks):
            kept, by_d, by_w = (split(units[k], chunk, chunks) for k in ("keep", "release_d", "release_w"))
            row.append(
                BlockCost(
                    forward_ns=split(times["forward"], chunk, chunks),
                    input_grad_ns=split(times["input_grad"], chunk, chunks),
                    weight_grad_ns=split(times["weight_grad"], chunk, chunks),
                    forward_keep_bytes=kept,
                    input_grad_take_bytes=max(0, by_d + by_w - kept),
                    input_grad_release_bytes=by_d,
                    weight_grad_release_bytes=max(by_w, kept - by_d),
                )
            )
        site_of = tuple(stage // (stages // sites) for stage in range(stages))
        latency = _nanoseconds("latency_ms", latency_ms)
        serialisation = _nanoseconds("serialisation_ms", serialisation_ms)
        limit = None if memory_microbatches is None else _units("memory_microbatches", memory_microbatches)
        forward, backward = cross_site_hops(traversal, stages, chunks, site_of, latency, serialisation)
        return cls(
            traversal=traversal,
            stages=stages,
            chunks=chunks,
            microbatches=microbatches,
            costs=(tuple(row),) * stages,
            forward_hops=forward,
            backward_hops=backward,
            activation_limit_bytes=(limit,) * stages,
            sites=site_of,
            weight_grad_pieces=weight_grad_pieces,
        )


def cross_site_hops(
    traversal: str, stages: int, chunks: int, sites: Sequence[int], latency_ns: int, serialisation_ns: int
) -> tuple[tuple[Hop, ...], tuple[Hop, ...]]:
    """Forward and backward hops where only boundaries across sites cost, each on the wire `site>site` it crosses."""
    forward: list[Hop] = []
    backward: list[Hop] = []
    for position in range(stages * chunks - 1):
        here = sites[place_of(traversal, stages, position)[0]]
        there = sites[place_of(traversal, stages, position + 1)[0]]
        for hops, a, b in ((forward, here, there), (backward, there, here)):
            hops.append(
                Hop() if a == b else Hop(latency_ns=latency_ns, serialisation_ns=serialisation_ns, wire=wire_name(a, b))
            )
    return tuple(forward), tuple(backward)


def wire_name(source_site: int, target_site: int) -> str:
    """Name of the directed wire between two sites."""
    return f"{source_site}>{target_site}"


def _nanoseconds(field: str, milliseconds: float) -> int:
    if not 0 <= milliseconds < float("inf"):
        raise FieldError(field, milliseconds, "is not a finite time >= 0", "give milliseconds")
    return round(milliseconds * 1_000_000)


def _units(field: str, microbatches: float) -> int:
    if not 0 <= microbatches < float("inf"):
        raise FieldError(field, microbatches, "is not a finite amount >= 0", "give microbatches of activations")
    return round(microbatches * MICROBATCH_UNITS)
