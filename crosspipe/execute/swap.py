"""A new Plan between two iterations, on all ranks at once, while training goes on.

Rank 0 is offered a plan by a source (a watched file, or any callable) and shows it to all; it is taken only if every
rank can execute it within its memory, else all go on as before and the reason is kept. Parameters, optimizer and data
are not touched, so the loss continues as if nothing had happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.execute.deadlock import check_rendezvous
from crosspipe.execute.engine import Engine, is_out_of_memory
from crosspipe.execute.plan import Plan, RankPlan
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule, check
from crosspipe.store import Swap

Source = Callable[[int], Plan | None]  # the iteration to come -> the plan to execute from it on, None to go on


class Swapper:
    """Offers, votes and swaps for one rank. `source` is asked on stage 0 only; `adopted` hears of every plan taken.

    `plan` is the one that runs. `swaps` lists every offer with its outcome, the same on every rank.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        source: Source | None,
        *,
        blocking_sends: bool = True,
        adopted: Callable[[RankPlan], None] = lambda plan: None,
    ) -> None:
        self.engine, self.plan = engine, plan
        self.swaps: list[Swap] = []
        self._source, self._blocking_sends, self._adopted = source, blocking_sends, adopted

    def before(self, iteration: int) -> None:
        """To be called before every iteration. Collective."""
        rank = self.engine.plan.rank
        offered, refused = None, ""
        if rank == 0 and self._source is not None:
            try:
                offered = self._source(iteration)
            except CrosspipeError as error:
                refused = str(error)
        shown = self.engine.transport.allgather(msgspec.json.encode(_Offer(offered, refused)))[0]
        offered, refused = msgspec.structs.astuple(msgspec.json.decode(shown, type=_Offer))
        if offered is not None:
            votes = self.engine.transport.allgather(self._objection(offered).encode())
            refused = next((f"rank {r}: {vote.decode()}" for r, vote in enumerate(votes) if vote), "")
        elif not refused:
            return
        self.swaps.append(
            Swap(
                iteration=iteration,
                schedule_name="" if offered is None else offered.schedule_name,
                predicted_makespan_ns=0 if offered is None else offered.predicted_makespan_ns,
                refused=refused or None,
            )
        )
        print(f"iteration {iteration}: {describe(self.swaps[-1])}", flush=True)
        if offered is not None and not refused:
            self.plan = offered
            self.engine.adopt(offered.ranks[rank])
            self._adopted(offered.ranks[rank])
        else:
            self.engine.adopt(self.engine.plan)  # gives back what was reserved

    def _objection(self, plan: Plan) -> str:
        """Why this rank cannot execute `plan`; empty if it can."""
        engine, rank = self.engine, self.engine.plan.rank
        if len(plan.ranks) != engine.transport.size:
            return f"the plan is for {len(plan.ranks)} ranks, this run has {engine.transport.size}"
        own = plan.ranks[rank]
        if any(size != engine.message_format.size_bytes for size in own.slot_bytes):
            return f"its buffers are not of the messages' {engine.message_format.size_bytes} bytes; lower it for them"
        if _traffic(own) != _traffic(engine.plan):
            return "it sends or receives what the running plan does not; lower it on a problem of the same shape"
        if rank == 0:
            try:
                check_rendezvous(plan, blocking_sends=self._blocking_sends)
            except CrosspipeError as error:
                return str(error)
            faults = [v for v in check(engine.problem, _order_of(engine.problem, plan)) if v.kind != "memory"]
            if faults:
                return str(faults[0])
        need, limit = peak_bytes(engine.problem, own), engine.problem.activation_limit_bytes[rank]
        if limit is not None and need > limit:
            return f"its activations take {need} bytes on stage {rank}, the limit is {limit}"
        try:
            engine.reserve(own)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return f"there is no memory for its {len(own.slot_bytes)} receive buffers"
        return ""


class _Offer(msgspec.Struct, frozen=True):
    plan: Plan | None
    unreadable: str


def describe(swap: Swap) -> str:
    """The outcome in words."""
    name = swap.schedule_name or "the offered plan"
    return f"{name} takes over" if swap.refused is None else f"{name} is refused by all ranks ({swap.refused})"


def peak_bytes(problem: Problem, plan: RankPlan) -> int:
    """Most activations that the rank's order holds at once, by the Problem's accounting."""
    held = peak = 0
    for block in (action.block for action in plan.actions if action.block is not None):
        cost = problem.costs[plan.rank][block.chunk]
        held += cost.take_bytes(block.kind) if block.piece == 0 else 0
        peak = max(peak, held)
        held -= cost.release_bytes(block.kind, block.piece, block.pieces)
    return peak


def _traffic(plan: RankPlan) -> Counter[tuple[object, ...]]:
    """What a rank exchanges with the others, in no order."""
    kinds = ("post", "wait", "send", "gather", "gathered", "reduce")
    return Counter((a.kind, a.message, a.peer) for a in plan.actions if a.kind in kinds)


def _order_of(problem: Problem, plan: Plan) -> Schedule:
    return Schedule(
        name=plan.schedule_name,
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        orders=tuple(tuple(a.block for a in rank.actions if a.block is not None) for rank in plan.ranks),
    )


class WatchedFile:
    """A source: a file that holds a Plan or a Schedule (JSON), taken whenever it changes after this was made.

    `lower` makes the Plan of a Schedule. Replace the file in one step (write another, rename it), as `crosspipe solve
    -o` does: a half-written one is refused.
    """

    def __init__(self, path: str | Path, lower: Callable[[Schedule], Plan]) -> None:
        self._path, self._lower = Path(path), lower
        self._seen = self._signature()

    def __call__(self, iteration: int) -> Plan | None:
        """The plan of a file that is new; raises CrosspipeError where it holds none."""
        signature = self._signature()
        if signature == self._seen:
            return None
        self._seen = signature
        if signature is None:
            return None
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Plan | Schedule)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArtifactError(f"{self._path}: is no plan and no schedule ({error}); write a whole one") from error
        return found if isinstance(found, Plan) else self._lower(found)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
