"""The engine on a GPU: the same Plan, launched ahead by a host that waits for the device only when all is launched.

Blocks run on one stream, messages on a stream per channel; their times are stamped by the device and read at the end.
Emulated delays are kernels too (`crosspipe.execute.cuda_wire`), so neither sender nor receiver ever stops the host.
There is no pacing: a GPU stands for itself. Tested on a stand-in for the device; not run on a GPU yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from crosspipe.errors import CrosspipeError, FieldError
from crosspipe.execute.clock import EVERY_NS, Clock, Starts
from crosspipe.execute.cuda_wire import ARRIVAL, HEADER
from crosspipe.execute.dependencies import made, needed
from crosspipe.execute.ending import meet
from crosspipe.execute.engine import Settings, named
from crosspipe.execute.failure import PeerLost
from crosspipe.execute.mathematics import Batch, Mathematics, Stage, fused_in
from crosspipe.execute.plan import Action, Format, RankPlan
from crosspipe.execute.replicas import Replicas, Step
from crosspipe.execute.trace import LATE_NS, Trace, TracedBlock, TracedMessage
from crosspipe.execute.transport import Transport
from crosspipe.problem import Problem
from crosspipe.schedule.order import Block, Message

_QUERY_S = 2e-4  # between two looks at whether all is done
_PEEK_S = 0.5  # and at how far it is


class Channels(Protocol):
    """Messages on the device: see `crosspipe.execute.nccl.NcclChannels`."""

    def send(self, target: int, header: Tensor, tensor: Tensor) -> None: ...
    def receive(self, source: int, header: Tensor, buffer: Tensor) -> list[Any]: ...


class _Received(NamedTuple):
    """A posted receive: the works to wait for, its row in the notes."""

    works: list[Any]
    row: int


class CudaEngine:
    """One rank on one GPU. Arguments as of `crosspipe.execute.engine.Engine`; `transport` carries words between hosts,
    `channels` the messages, `device` is a `CudaDevice`.

    Raises FieldError for what a device cannot do: pacing, delays of gradient reductions, and a wire that the ranks of
    several devices would share (`shared_wires`).
    """

    def __init__(
        self,
        problem: Problem,
        plan: RankPlan,
        *,
        stages: Sequence[Stage],
        step: Step,
        transport: Transport,
        channels: Channels,
        clock: Clock,
        device: Any,
        message_format: Format,
        batch: Batch,
        settings: Settings,
        replicas: Replicas | None = None,
        shared_wires: Sequence[str] = (),
        at: Callable[[int, int], None] = lambda iteration, action: None,
    ) -> None:
        if settings.paced:
            raise FieldError("run.pace", "given", "blocks on a GPU are not paced", "use run=real")
        if settings.emulate:
            _check_hops(problem, shared_wires)
        self.problem, self.step, self.replicas, self.settings = problem, step, replicas, settings
        self.transport, self.channels, self.clock, self.device = transport, channels, clock, device
        self.message_format, self._batch, self._stages, self._at = message_format, batch, stages, at
        self._starts, self._set_ns = Starts(transport), clock.now()
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
        self._slots: list[Tensor] = []
        self.adopt(plan)

    def adopt(self, plan: RankPlan) -> None:
        """Executes `plan` from the next iteration on: allocates its buffers and the places for its notes."""
        plan.check_slots(self.message_format)
        self.reserve(plan)
        self.plan = plan
        del self._slots[len(plan.slot_bytes) :]
        where = self.device.device

        def integers(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int64, device=where)

        kinds = [action.kind for action in plan.actions]
        sends = [action for action in plan.actions if action.kind == "send"]
        self._delays = torch.tensor([self._delay(i, sends) for i in range(len(sends))], dtype=torch.int64, device=where)
        self._blocks = integers(kinds.count("compute"), 2)  # start, end
        self._sent_headers = integers(len(sends), HEADER)
        self._headers = integers(kinds.count("post"), HEADER)
        self._posts = integers(kinds.count("post"), 1)  # when the device got to posting it
        self._waited = integers(kinds.count("post"), 1)
        self._arrivals = integers(kinds.count("post"), ARRIVAL)
        self._beside_ends = integers(kinds.count("gather") + kinds.count("reduce"), 1)
        self._wires = {wire: integers(1) for wire in self.problem.wires}  # when each is free
        # a message on a hop without a wire has a cell of its own: such messages leave on several streams at once
        self._unshared = integers(len(sends), 1)

    def reserve(self, plan: RankPlan) -> None:
        """See `crosspipe.execute.engine.Engine.reserve`."""
        shape, dtype = self.message_format.shape, getattr(torch, self.message_format.dtype)
        for _ in range(len(self._slots), len(plan.slot_bytes)):
            self._slots.append(torch.empty(shape, dtype=dtype, device=self.device.device))

    def keep_time(self, clock: Clock) -> None:
        """From the next iteration on by this estimate of the common clock, by which the device is set now and then."""
        self.clock = clock
        if clock.now() - self._set_ns >= EVERY_NS:
            self.device.set_clock()
            self._set_ns = clock.now()

    def iterate(self, index: int) -> Trace:
        """See `crosspipe.execute.engine.Engine.iterate`. Collective."""
        self._number = -1
        with named(lambda: self.plan.where(self._number)):
            return self._iterate(index)

    def _iterate(self, index: int) -> Trace:
        self.step.begin()
        self._begin_notes(index)
        self.device.synchronize()
        begin = self._starts.agree(self.clock)
        self.clock.wait_until(begin)
        for number, action in enumerate(self.plan.actions):
            self._number = number
            self._at(index, number)
            self._do[action.kind](action)
        self._number = len(self.plan.actions)
        self._at(index, self._number)
        return self._finish(index, begin)

    def _begin_notes(self, index: int) -> None:
        self._index = index
        self._made: list[Block] = []
        self._losses: list[Tensor] = []
        self._posted: dict[Message, _Received] = {}
        self._waits: list[tuple[Message, _Received]] = []
        self._handed: list[tuple[Message, int]] = []  # inside the rank: message, row of its block
        self._beside: list[tuple[Message, int]] = []  # started: message, row of the block before it (-1: none)
        self._ended: list[tuple[Message, int]] = []
        self._inputs: dict[Message, Tensor] = {}
        self._outputs: dict[Message, tuple[Tensor, int]] = {}  # made, not sent: tensor, row of its block
        self._sends = 0
        self._released: dict[int, Any] = {}  # slot -> the place in the computing stream from which it is free
        microbatches = range(self.problem.microbatches)
        tokens = {mb: self._batch(index, mb) for mb in microbatches}  # before anything is timed
        where = self.device.device
        on_device = {mb: (x.to(where), target.to(where)) for mb, (x, target) in tokens.items()}
        self._mathematics = Mathematics(
            self.problem, self.plan.rank, self._stages, lambda _, mb: on_device[mb], fused_in(self.plan)
        )

    def _post(self, action: Action) -> None:
        assert action.message is not None
        row = len(self._posted) + len(self._waits)
        with self.device.beside(("receive", action.peer), behind=False):
            if action.slot in self._released:
                self.device.after(self._released[action.slot])
            self.device.clock.stamp(self._posts[row])
            works = self.channels.receive(action.peer, self._headers[row], self._slots[action.slot])
        self._posted[action.message] = _Received(works, row)

    def _wait(self, action: Action) -> None:
        assert action.message is not None
        received = self._posted.pop(action.message)
        self.device.clock.stamp(self._waited[received.row])
        for work in received.works:
            work.wait()  # of the stream, not of the host
        row = received.row
        self.device.clock.arrive(self._headers[row], self._posts[row], self._arrivals[row])
        self._waits.append((action.message, received))
        self._inputs[action.message] = self._slots[action.slot].detach()

    def _compute(self, action: Action) -> None:
        block = action.block
        assert block is not None
        source = needed(self.problem, self.plan.rank, block)
        row = len(self._made)
        self.device.clock.stamp(self._blocks[row, :1])
        tensor = None if source is None else self._inputs.pop(source)
        output, loss = self._mathematics.run(self._index, block, tensor)
        self.device.clock.stamp(self._blocks[row, 1:])
        self._made.append(block)
        if loss is not None:
            self._losses.append(loss)
        passed = made(self.problem, self.plan.rank, block)
        if output is None or passed is None:
            return
        message, target = passed
        if target == self.plan.rank:
            self._inputs[message] = output
            self._handed.append((message, row))
        else:
            self._outputs[message] = output, row

    def _send(self, action: Action) -> None:
        message = action.message
        assert message is not None
        output, block = self._outputs.pop(message)
        hop = self.problem.message_hop(message.kind, message.position)
        wire = hop.wire if hop is not None and self.settings.emulate else None
        row, self._sends = self._sends, self._sends + 1
        with self.device.beside(("send", wire or action.peer), behind=True):
            free = self._unshared[row] if wire is None else self._wires[wire]
            ready = self._blocks[block, 1:]
            self.device.clock.depart(ready, free, self._delays[row], self._sent_headers[row])
            self.channels.send(action.peer, self._sent_headers[row], output)
            self.device.keep(output)

    def _release(self, action: Action) -> None:
        self._released[action.slot] = self.device.mark()

    def _start_beside(self, action: Action) -> None:
        message = action.message
        assert message is not None
        assert self.replicas is not None
        start = self.replicas.gather if message.kind == "gather" else self.replicas.reduce
        start(self.problem.place(message.position)[1])
        self._beside.append((message, len(self._made) - 1))

    def _gathered(self, action: Action) -> None:
        assert action.message is not None
        self._await_beside([b for b in self._beside if b[0] == action.message])

    def _await_beside(self, started: list[tuple[Message, int]]) -> None:
        assert self.replicas is not None or not started
        for message, after in started:
            self.replicas.wait(self.problem.place(message.position)[1])
            self.device.clock.stamp(self._beside_ends[len(self._ended)])
            self._ended.append((message, after))
            self._beside.remove((message, after))

    def _finish(self, index: int, begin: int) -> Trace:
        self._await_beside(list(self._beside))
        self._await_device(index, begin)
        self.device.synchronize()
        blocks = [
            TracedBlock(block, start, end, start, end, end)
            for block, (start, end) in zip(self._made, self._blocks.tolist(), strict=True)
        ]
        messages = self._messages(blocks, begin)
        end = max([begin, *(b.end_ns for b in blocks), *(m.arrival_ns for m in messages)])
        ending = meet(self.transport, self.step, index, end, self._losses, self.settings.clip_norm)
        self.device.synchronize()
        norm_end = self.clock.now()
        self.step.update()
        self.device.synchronize()
        step_end = self.clock.now()
        return Trace(
            index=index,
            begin_ns=begin,
            blocks=tuple(blocks),
            messages=tuple(messages),
            sent=self._sends,
            blocks_end_ns=ending.blocks_end_ns,
            norm_end_ns=norm_end,
            raw_norm_end_ns=norm_end,
            step_end_ns=step_end,
            raw_step_end_ns=step_end,
            loss=ending.loss,
            gradient_norm=ending.gradient_norm,
            clip_factor=ending.clip_factor,
        )

    def _await_device(self, index: int, begin: int) -> None:
        """Until the computing stream has done all that was launched; says meanwhile how far it is.

        The time-out counts from the block that ended last, not from the launch. Raises PeerLost for what is due then.
        """
        end, ended = self.device.mark(), 0
        looked_s = moved_s = time.monotonic()
        while not self.device.done(end):
            time.sleep(_QUERY_S)
            now_s = time.monotonic()
            if now_s - looked_s < _PEEK_S:
                continue
            looked_s = now_s
            stamped = sum(stamp >= begin for _, stamp in self.device.peek(self._blocks))
            self._number = self._due(stamped)
            if stamped > ended:
                ended, moved_s = stamped, now_s
                self._at(index, self._number)
            elif now_s - moved_s > self.transport.timeout_s:
                due = self.plan.actions[self._number :][:1]
                reason = f"the device has ended nothing for {self.transport.timeout_s:g} s"
                raise PeerLost(due[0].peer if due else -1, reason)

    def _due(self, ended: int) -> int:
        """The number of the action that is due once so many blocks have ended: the next one, or what it waits for."""
        computes = [number for number, action in enumerate(self.plan.actions) if action.kind == "compute"]
        if ended >= len(computes):
            return len(self.plan.actions)
        number = computes[ended]
        waits = number > 0 and self.plan.actions[number - 1].kind in ("wait", "gathered")
        return number - 1 if waits else number

    def _messages(self, blocks: Sequence[TracedBlock], begin: int) -> list[TracedMessage]:
        """The notes of all messages, read from the device. The order of every channel is checked."""
        messages = []
        waited, arrivals, ends = self._waited.tolist(), self._arrivals.tolist(), self._beside_ends.tolist()
        posts = self._posts.tolist()
        numbers = self._numbers("post")
        for message, (_, row) in self._waits:
            received, resumed, number, ready, start, served, arrival = arrivals[row]
            if number != numbers[row]:
                raise CrosspipeError(f"{message} came as number {number} of its channel, not as {numbers[row]}")
            if not self.settings.emulate and received - waited[row][0] > LATE_NS:
                arrival = received  # nothing says when it came, but the stream stood still for it
            times = (ready, start, served, arrival, waited[row][0], received, resumed, posts[row][0])
            messages.append(TracedMessage(message, *times))
        for message, row in self._handed:
            messages.append(TracedMessage(message, *(blocks[row].end_ns,) * 8))
        for (message, after), (ended,) in zip(self._ended, ends, strict=True):
            ready = begin if after < 0 else blocks[after].end_ns
            messages.append(TracedMessage(message, ready, ready, ready, ended, ready, ended, ended, ready))
        return messages

    def _numbers(self, kind: str) -> list[int]:
        """For each action of a kind, its number on its channel in this iteration."""
        count: dict[int, int] = {}
        numbers = []
        for action in self.plan.actions:
            if action.kind == kind:
                numbers.append(count.get(action.peer, 0))
                count[action.peer] = numbers[-1] + 1
        return numbers

    def _delay(self, row: int, sends: Sequence[Action]) -> tuple[int, int, int]:
        """(number, serialisation, latency) of a send; without emulation it takes what it takes."""
        message = sends[row].message
        assert message is not None
        number = self._numbers("send")[row]
        hop = self.problem.message_hop(message.kind, message.position)
        if hop is None or not self.settings.emulate:
            return number, 0, 0
        return number, hop.serialisation_ns, hop.latency_ns


def _check_hops(problem: Problem, shared_wires: Sequence[str]) -> None:
    for wire in shared_wires:
        raise FieldError(
            "wire",
            wire,
            "several GPUs send over it, and its state is on one",
            "use a traversal with one sender, or gloo",
        )
    for row in problem.data_parallel:
        for replica in row:
            for hop in (replica.reduce, replica.gather):
                if hop is not None and hop.wire is not None:
                    raise FieldError(
                        "data_parallel",
                        hop.wire,
                        "delays of gradient reductions are not injected on GPUs",
                        "keep the replicas of a stage within a site, or use gloo",
                    )
