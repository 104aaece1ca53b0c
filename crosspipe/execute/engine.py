"""The engine: executes one rank of a Plan, iteration by iteration, with real mathematics and real messages.

Two modes. `real` runs as fast as it can. `paced` lets a small machine stand for a large one by *anchored pacing*: a
block's planned end is the later of the previous planned end and its message's arrival, plus its duration in the
Problem; the rank does the real, smaller mathematics and waits for the planned end. A block that misses its anchor is
noted, never hidden: its message leaves when it really ended. The engine decides no order and knows no files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor, nn

from crosspipe.errors import CrosspipeError, FieldError
from crosspipe.execute.clock import Clock, agree_start
from crosspipe.execute.emulation import Departure, Wire, depart_unshared
from crosspipe.execute.plan import Action, Format, RankPlan
from crosspipe.execute.replicas import Replicas, Step
from crosspipe.execute.trace import LATE_NS, Trace, TracedBlock, TracedMessage
from crosspipe.execute.transport import Header, Receipt, Transport
from crosspipe.problem import Problem
from crosspipe.schedule.order import Block, Message


class Stage(Protocol):
    """What the engine needs of a (stage, chunk): see `crosspipe.model.SplitBackward`."""

    stage: nn.Module

    def forward(self, mb: int, x: Tensor, target: Tensor | None = None) -> Tensor: ...
    def input_grad(self, mb: int, grad: Tensor | None) -> Tensor | None: ...
    def weight_grad(self, mb: int, piece: int = 0, pieces: int = 1) -> None: ...
    def backward(self, mb: int, grad: Tensor | None) -> Tensor | None: ...


Batch = Callable[[int, int], tuple[Tensor, Tensor]]  # (iteration, microbatch) -> input of the model, target


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
        at: Callable[[int, int], None] = lambda iteration, action: None,
    ) -> None:
        for slot, size in enumerate(plan.slot_bytes):
            if size != message_format.size_bytes:
                raise FieldError(
                    f"slot_bytes[{slot}]",
                    size,
                    f"messages are {message_format.size_bytes} bytes",
                    "lower the plan anew",
                )
        self.problem, self.plan, self.stages, self.step, self.replicas = problem, plan, stages, step, replicas
        self.transport, self.clock, self.wires, self.batch, self.settings = transport, clock, wires, batch, settings
        self._at = at
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
        dtype = getattr(torch, message_format.dtype)
        self._slots = [torch.empty(message_format.shape, dtype=dtype) for _ in plan.slot_bytes]
        self._sent = [0] * transport.size  # messages so far, by target
        self._posted = [0] * transport.size  # and by source
        self._receipts: dict[Message, tuple[int, Receipt]] = {}  # posted, not waited for: number on its channel
        self._inputs: dict[Message, tuple[Tensor, int]] = {}  # arrived, not used: tensor, arrival
        self._outputs: dict[Message, tuple[Tensor, int]] = {}  # made, not sent: tensor, end of its block
        self._beside: dict[Message, tuple[int, Departure]] = {}  # gathers not waited for: ready, planned life

    def iterate(self, index: int) -> Trace:
        """Runs one whole iteration, blocks to optimizer step, and returns what happened. Collective."""
        self.step.begin()
        notes = _Notes(index, agree_start(self.transport, self.clock))
        self.clock.wait_until(notes.begin)
        for number, action in enumerate(self.plan.actions):
            self._at(index, number)
            self._do[action.kind](notes, action)
        self._at(index, len(self.plan.actions))
        return self._finish(notes)

    def _post(self, notes: _Notes, action: Action) -> None:
        assert action.message is not None
        number = self._posted[action.peer]
        self._posted[action.peer] += 1
        self._receipts[action.message] = number, self.transport.post_receive(action.peer, self._slots[action.slot])

    def _wait(self, notes: _Notes, action: Action) -> None:
        message = action.message
        assert message is not None
        waited = self.clock.now()
        number, receipt = self._receipts.pop(message)
        header = receipt.wait()
        resumed = received = self.clock.now()
        if header.number != number:
            raise CrosspipeError(f"{message} came as number {header.number} from rank {action.peer}, not as {number}")
        arrival = header.not_before_ns
        if self.settings.emulate:
            resumed = self.clock.wait_until(arrival)
        elif received - waited > LATE_NS:  # nothing says when it came, but the rank stood still for it
            arrival = received
        # detached: what autograd hangs on an input must not stay with the buffer
        self._inputs[message] = self._slots[action.slot].detach(), arrival
        times = (header.ready_ns, header.start_ns, header.served_ns, arrival, waited, received, resumed)
        notes.messages.append(TracedMessage(message, *times))

    def _compute(self, notes: _Notes, action: Action) -> None:
        block = action.block
        assert block is not None
        needed = self._needed(block)
        tensor, arrival = (None, notes.begin) if needed is None else self._inputs.pop(needed)
        raw_start = self.clock.now()
        output = self._run(notes, block, tensor)
        computed = self.clock.now()
        if self.settings.paced:
            cost = self.problem.costs[self.plan.rank][block.chunk]
            start = max(notes.planned, arrival)
            end = start + cost.duration_ns(block.kind, block.piece, block.pieces)
            raw_end = self.clock.wait_until(end)
        else:
            start, end, raw_end = raw_start, computed, computed
        notes.planned = end
        notes.blocks.append(TracedBlock(block, start, end, raw_start, computed, raw_end))
        if output is not None:
            self._pass_on(notes, block, output, end, raw_end)

    def _needed(self, block: Block) -> Message | None:
        """The message a block uses; None for W, for F of the first and D of the last position."""
        position = self.problem.position(self.plan.rank, block.chunk)
        if block.kind == "F":
            return Message("F", position - 1, block.microbatch) if position else None
        if block.kind == "W" or position == self.problem.positions - 1:
            return None
        return Message("D", position + 1, block.microbatch)

    def _run(self, notes: _Notes, block: Block, tensor: Tensor | None) -> Tensor | None:
        """The mathematics of a block; returns what goes to another position."""
        kind, chunk, microbatch, piece, pieces = block
        stage = self.stages[chunk]
        if kind == "F":
            position = self.problem.position(self.plan.rank, chunk)
            last = position == self.problem.positions - 1
            tokens, target = self.batch(notes.index, microbatch) if position == 0 or last else (None, None)
            output = stage.forward(microbatch, tokens if position == 0 else tensor, target if last else None)
            if not last:
                return output
            notes.losses.append(output)
            return None
        if kind == "W":
            stage.weight_grad(microbatch, piece, pieces)
            return None
        return (stage.input_grad if kind == "D" else stage.backward)(microbatch, tensor)

    def _pass_on(self, notes: _Notes, block: Block, output: Tensor, end: int, raw_end: int) -> None:
        position = self.problem.position(self.plan.rank, block.chunk)
        message = Message("F" if block.kind == "F" else "D", position, block.microbatch)
        target = position + 1 if block.kind == "F" else position - 1
        if target < 0:
            return
        if self.problem.place(target)[0] != self.plan.rank:
            self._outputs[message] = output, raw_end
            return
        self._inputs[message] = output, end
        notes.messages.append(TracedMessage(message, end, end, end, end, raw_end, raw_end, raw_end))

    def _send(self, notes: _Notes, action: Action) -> None:
        message = action.message
        assert message is not None
        output, ready = self._outputs.pop(message)
        departure = self._depart(message, ready)
        self.transport.send(action.peer, Header(self._sent[action.peer], ready, *departure), output)
        self._sent[action.peer] += 1
        notes.sent += 1

    def _depart(self, message: Message, ready: int) -> Departure:
        hop = self.problem.message_hop(message.kind, message.position)
        assert hop is not None
        if not self.settings.emulate:
            return Departure(ready, ready, ready)
        if hop.wire is None:
            return depart_unshared(ready, hop)
        return self.wires[hop.wire].depart(ready, hop)

    def _start_beside(self, notes: _Notes, action: Action) -> None:
        """Starts a gather (ready when the iteration begins) or a reduction (ready when the last block has ended)."""
        message, replicas = action.message, self.replicas
        assert message is not None
        assert replicas is not None
        start = replicas.gather if message.kind == "gather" else replicas.reduce
        start(self.problem.place(message.position)[1])
        ready = notes.blocks[-1].raw_end_ns if notes.blocks else notes.begin
        self._beside[message] = ready, self._depart(message, ready)

    def _gathered(self, notes: _Notes, action: Action) -> None:
        message = action.message
        assert message is not None
        notes.planned = max(notes.planned, self._await_beside(notes, message, self.problem.place(message.position)[1]))

    def _await_beside(self, notes: _Notes, message: Message, chunk: int | None) -> int:
        """Waits for the replicas and for the planned arrival of what was started; returns when it counts as there."""
        assert self.replicas is not None
        waited = self.clock.now()
        self.replicas.wait(chunk)
        received = self.clock.now()
        ready, departure = self._beside.pop(message)
        arrival = departure.arrival_ns
        if self.settings.emulate:
            resumed = self.clock.wait_until(arrival)
        else:
            arrival, resumed = max(arrival, received), received
        notes.messages.append(TracedMessage(message, ready, *departure[:2], arrival, waited, received, resumed))
        return arrival

    def _release(self, notes: _Notes, action: Action) -> None:
        """Nothing to do on the CPU: the plan does not post into the buffer before this place."""

    def _finish(self, notes: _Notes) -> Trace:
        """Gradient norm and clipping over all ranks, optimizer step; each takes its planned time in paced mode."""
        last = notes.blocks[-1] if notes.blocks else None
        end = notes.begin if last is None else last.end_ns
        if last is not None and last.lateness_ns > LATE_NS:
            end = last.raw_end_ns  # no later block of this rank can make up for it
        for message in list(self._beside):
            end = max(end, self._await_beside(notes, message, None))
        rows = self.transport.allgather(struct.pack("<qd", end, self.step.square()))
        ends, squares = zip(*(struct.unpack("<qd", row) for row in rows), strict=True)
        self.transport.flush()  # returns at once: every message has been received
        for rank, square in enumerate(squares):
            if not math.isfinite(square):
                raise CrosspipeError(
                    f"iteration {notes.index}: the gradients of rank {rank} are not finite; lower the learning rate"
                )
        largest, blocks_end = self.settings.clip_norm, max(ends)
        factor = 1.0 if largest is None else self.step.clip(sum(squares), largest)
        norm_end, raw_norm_end = self._paced_end(blocks_end, self.settings.gradient_norm_ns)
        self.step.update()
        step_end, raw_step_end = self._paced_end(norm_end, self.settings.optimizer_step_ns)
        return Trace(
            index=notes.index,
            begin_ns=notes.begin,
            blocks=tuple(notes.blocks),
            messages=tuple(notes.messages),
            sent=notes.sent,
            blocks_end_ns=blocks_end,
            norm_end_ns=norm_end,
            raw_norm_end_ns=raw_norm_end,
            step_end_ns=step_end,
            raw_step_end_ns=raw_step_end,
            loss=float(torch.stack(notes.losses).mean()) if notes.losses else None,
            gradient_norm=math.sqrt(sum(squares)),
            clip_factor=factor,
        )

    def _paced_end(self, start: int, duration: int) -> tuple[int, int]:
        """Anchored and real end of what began at `start` and has just been computed."""
        if self.settings.paced:
            return start + duration, self.clock.wait_until(start + duration)
        now = self.clock.now()
        return now, now
