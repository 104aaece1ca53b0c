"""The engine: executes one rank of a Plan, iteration by iteration, with real mathematics and real messages.

Two modes. `real` runs as fast as it can. `paced` lets a small machine stand for a large one by *anchored pacing*: a
block's planned end is the later of the previous planned end and its message's arrival, plus its duration in the
Problem; the rank does the real, smaller mathematics and waits for the planned end. A block that misses its anchor is
noted, never hidden: its message leaves when it really ended. The engine decides no order and knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor

from crosspipe.errors import CrosspipeError
from crosspipe.execute.clock import Clock, Starts
from crosspipe.execute.dependencies import made, needed
from crosspipe.execute.emulation import Links, Wire
from crosspipe.execute.ending import meet
from crosspipe.execute.failure import PeerLost
from crosspipe.execute.mathematics import Batch, Mathematics, Stage, fused_in
from crosspipe.execute.plan import Action, Format, RankPlan
from crosspipe.execute.priority import patiently, promptly
from crosspipe.execute.replicas import Beside, Replicas, Step
from crosspipe.execute.trace import LATE_NS, Trace, TracedBlock, TracedMessage
from crosspipe.execute.transport import Header, Receipt, Transport
from crosspipe.execute.variation import Jitter
from crosspipe.problem import Problem
from crosspipe.schedule.order import Message


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run. `gradient_norm_ns` and `optimizer_step_ns` are what they take on the slowest stage (paced mode).

    `emulate` injects the Problem's hops into the messages; without it they take what the transport takes. `clip_norm`
    None: no clipping.
    """

    paced: bool = True
    emulate: bool = True
    gradient_norm_ns: int = 0
    optimizer_step_ns: int = 0
    clip_norm: float | None = None

    @property
    def keeps_time(self) -> bool:
        """Whether anything is to happen at a moment that is known before."""
        return self.paced or self.emulate


class _Notes:
    """What an iteration has brought so far; `planned` is where the rank's anchored time stands."""

    def __init__(self, index: int, begin: int) -> None:
        self.index, self.begin, self.planned = index, begin, begin
        self.losses: list[Tensor] = []
        self.blocks: list[TracedBlock] = []
        self.messages: list[TracedMessage] = []
        self.sent = 0


class Engine:
    """One rank, ready to iterate. `stages[chunk]` are its stages, `step` what ends an iteration on them.

    `replicas` is needed where the plan gathers or reduces; `wires` are those this rank sends over; `at(iteration,
    action)` is called before every action, so that whoever watches knows where the rank is.
    """

    def __init__(
        self,
        problem: Problem,
        plan: RankPlan,
        *,
        stages: Sequence[Stage],
        step: Step,
        transport: Transport,
        clock: Clock,
        wires: Mapping[str, Wire],
        message_format: Format,
        batch: Batch,
        settings: Settings,
        replicas: Replicas | None = None,
        jitter: Jitter | None = None,
        at: Callable[[int, int], None] = lambda iteration, action: None,
    ) -> None:
        self.problem, self.step, self.transport, self.clock, self.settings = problem, step, transport, clock, settings
        self._links = Links(problem, wires if settings.emulate else None, jitter)
        self._mathematics = Mathematics(problem, plan.rank, stages, batch, fused_in(plan))
        self._at, self._starts = at, Starts(transport)
        self._do = {
            "post": self._post,
            "wait": self._wait,
            "compute": self._compute,
            "send": self._send,
            "release": self._release,
            "gather": self._start_beside,
            "gathered": self._gathered,
            "reduce": self._start_beside,
        }
        self.message_format = message_format
        self._slots: list[Tensor] = []
        self.adopt(plan)
        self._sent = [0] * transport.size  # messages so far, by target
        self._posted = [0] * transport.size  # and by source
        self._receipts: dict[Message, tuple[int, Receipt, int]] = {}  # posted, not waited for: number on its channel
        self._inputs: dict[Message, tuple[Tensor, int]] = {}  # arrived, not used: tensor, arrival
        self._outputs: dict[Message, tuple[Tensor, int]] = {}  # made, not sent: tensor, end of its block
        self._beside = Beside(problem, replicas, clock, emulate=settings.emulate)

    def adopt(self, plan: RankPlan) -> None:
        """Executes `plan` from the next iteration on; to be called by all ranks between the same two iterations.

        Buffers are kept, and grown or shrunk to what the plan asks. Raises FieldError if it was lowered for messages of
        another size.
        """
        plan.check_slots(self.message_format)
        self.reserve(plan)
        self.plan = plan
        self._mathematics = self._mathematics._replace(fused=fused_in(plan))
        del self._slots[len(plan.slot_bytes) :]

    def reserve(self, plan: RankPlan) -> None:
        """Allocates the buffers that `plan` needs beyond those of the running one; `adopt` frees what is too much."""
        shape, dtype, _ = msgspec.structs.astuple(self.message_format)
        for _ in range(len(self._slots), len(plan.slot_bytes)):
            self._slots.append(torch.empty(shape, dtype=getattr(torch, dtype)))

    def keep_time(self, clock: Clock) -> None:
        """From the next iteration on by this estimate of the common clock."""
        self.clock = self._beside.clock = clock

    def iterate(self, index: int) -> Trace:
        """Runs one whole iteration, blocks to optimizer step, and returns what happened. Collective.

        What ends it names the action at which it ended: PeerLost for a rank that does not answer, CrosspipeError for
        memory that is not there.
        """
        self._number = -1
        with named(lambda: self.plan.where(self._number)), promptly(self.settings.keeps_time):
            return self._iterate(index)

    def _iterate(self, index: int) -> Trace:
        with patiently():
            self.step.begin()
        notes = _Notes(index, self._starts.agree(self.clock))
        self.clock.wait_until(notes.begin)
        for number, action in enumerate(self.plan.actions):
            self._number = number
            self._at(index, self._number)
            self._do[action.kind](notes, action)
        self._number = len(self.plan.actions)
        self._at(index, self._number)
        return self._finish(notes)

    def _post(self, notes: _Notes, action: Action) -> None:
        assert action.message is not None
        number = self._posted[action.peer]
        self._posted[action.peer] += 1
        receipt = self.transport.post_receive(action.peer, self._slots[action.slot])
        self._receipts[action.message] = number, receipt, self.clock.now()

    def _wait(self, notes: _Notes, action: Action) -> None:
        message = action.message
        assert message is not None
        waited = self.clock.now()
        number, receipt, posted = self._receipts.pop(message)
        header = receipt.wait()
        resumed = received = self.clock.now()
        if header.number != number:
            raise CrosspipeError(f"{message} came as number {header.number} from rank {action.peer}, not as {number}")
        arrival = header.not_before_ns
        if self.settings.emulate:
            # no byte of a real one moves before its receive is posted, and then it still has the whole way to go
            arrival = max(arrival, posted + header.not_before_ns - header.start_ns)
            resumed = self.clock.wait_until(arrival)
        elif received - waited > LATE_NS:  # nothing says when it came, but the rank stood still for it
            arrival = received
        # detached: what autograd hangs on an input must not stay with the buffer
        self._inputs[message] = self._slots[action.slot].detach(), arrival
        times = (header.ready_ns, header.start_ns, header.served_ns, arrival, waited, received, resumed, posted)
        notes.messages.append(TracedMessage(message, *times))

    def _compute(self, notes: _Notes, action: Action) -> None:
        block = action.block
        assert block is not None
        source = needed(self.problem, self.plan.rank, block)
        tensor, arrival = (None, notes.begin) if source is None else self._inputs.pop(source)
        raw_start = self.clock.now()
        with patiently():
            output, loss = self._mathematics.run(notes.index, block, tensor)
        computed = self.clock.now()
        passed = made(self.problem, self.plan.rank, block)  # before the wait: after it, the message is waited for
        if self.settings.paced:
            cost = self.problem.costs[self.plan.rank][block.chunk]
            start = max(notes.planned, arrival)
            end = start + cost.duration_ns(block.kind, block.piece, block.pieces)
            raw_end = self.clock.wait_until(end)
        else:
            start, end, raw_end = raw_start, computed, computed
        notes.planned = end
        notes.blocks.append(TracedBlock(block, start, end, raw_start, computed, raw_end))
        if loss is not None:
            notes.losses.append(loss)
        if output is not None and passed is not None:
            self._pass_on(notes, *passed, output)

    def _pass_on(self, notes: _Notes, message: Message, target: int, output: Tensor) -> None:
        """Keeps what a block made for its send, or hands it over where it stays on this rank."""
        end, raw_end = notes.blocks[-1].end_ns, notes.blocks[-1].raw_end_ns
        if target != self.plan.rank:
            self._outputs[message] = output, raw_end
            return
        self._inputs[message] = output, end
        notes.messages.append(TracedMessage(message, end, end, end, end, raw_end, raw_end, raw_end, end))

    def _send(self, notes: _Notes, action: Action) -> None:
        message = action.message
        assert message is not None
        output, ready = self._outputs.pop(message)
        departure = self._links.depart(notes.index, message, ready)
        self.transport.send(action.peer, Header(self._sent[action.peer], ready, *departure), output)
        self._sent[action.peer] += 1
        notes.sent += 1

    def _start_beside(self, notes: _Notes, action: Action) -> None:
        """Starts a gather (ready when the iteration begins) or a reduction (ready when the last block has ended)."""
        assert action.message is not None
        ready = notes.blocks[-1].raw_end_ns if notes.blocks else notes.begin
        self._beside.start(action.message, ready, self._links.depart(notes.index, action.message, ready))

    def _gathered(self, notes: _Notes, action: Action) -> None:
        assert action.message is not None
        notes.messages.append(self._beside.await_end(action.message))
        notes.planned = max(notes.planned, notes.messages[-1].arrival_ns)

    def _release(self, notes: _Notes, action: Action) -> None:
        """Nothing to do on the CPU: the plan does not post into the buffer before this place."""

    def _finish(self, notes: _Notes) -> Trace:
        """Gradient norm and clipping over all ranks, optimizer step; each takes its planned time in paced mode."""
        last = notes.blocks[-1] if notes.blocks else None
        end = notes.begin if last is None else last.end_ns
        if last is not None and last.lateness_ns > LATE_NS:
            end = last.raw_end_ns  # no later block of this rank can make up for it
        reductions = self._beside.await_all()
        notes.messages += reductions
        # a late reduction either
        end = max([end, *(m.raw_arrival_ns if m.lateness_ns > LATE_NS else m.arrival_ns for m in reductions)])
        ending = meet(self.transport, self.step, notes.index, end, notes.losses, self.settings.clip_norm)
        norm_end, raw_norm_end = self._paced_end(ending.blocks_end_ns, self.settings.gradient_norm_ns)
        with patiently():
            self.step.update()
        step_end, raw_step_end = self._paced_end(norm_end, self.settings.optimizer_step_ns)
        return Trace(
            index=notes.index,
            begin_ns=notes.begin,
            blocks=tuple(notes.blocks),
            messages=tuple(notes.messages),
            sent=notes.sent,
            blocks_end_ns=ending.blocks_end_ns,
            norm_end_ns=norm_end,
            raw_norm_end_ns=raw_norm_end,
            step_end_ns=step_end,
            raw_step_end_ns=raw_step_end,
            loss=ending.loss,
            gradient_norm=ending.gradient_norm,
            clip_factor=ending.clip_factor,
        )

    def _paced_end(self, start: int, duration: int) -> tuple[int, int]:
        """Anchored and real end of what began at `start` and has just been computed."""
        if self.settings.paced:
            return start + duration, self.clock.wait_until(start + duration)
        now = self.clock.now()
        return now, now


@contextmanager
def named(where: Callable[[], str]) -> Iterator[None]:
    """Puts the place at which it was into a lost peer's error, and into one of memory that is not there."""
    try:
        yield
    except PeerLost as error:
        raise PeerLost(error.peer, f"{where()}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        words = (str(error).strip() or "MemoryError").splitlines()[0]
        raise CrosspipeError(f"out of memory at {where()}: {words}") from error


def is_out_of_memory(error: Exception) -> bool:
    """torch says it on a CPU by a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
