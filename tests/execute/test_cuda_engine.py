"""The engine for GPUs on a stand-in for the device: gradients of one process, times by the alpha-beta rule."""

from __future__ import annotations

from types import MappingProxyType

import msgspec
import pytest
import torch
from device_stand_in import HostDevice, HubChannels
from inprocess_ranks import FORMAT, batch, module_at, run_ranks
from orders import random_schedule, schedule_of
from torch import nn

from crosspipe.errors import CrosspipeError, FieldError
from crosspipe.execute.clock import Clock
from crosspipe.execute.cuda_engine import CudaEngine
from crosspipe.execute.engine import Settings
from crosspipe.execute.failure import PeerLost
from crosspipe.execute.inprocess import Hub
from crosspipe.execute.lowering import lower
from crosspipe.execute.nccl import check_nccl
from crosspipe.execute.replicas import PlainStep
from crosspipe.model import SplitBackward
from crosspipe.problem import Hop, Problem
from crosspipe.problem.problem import DataParallel
from crosspipe.schedule import Block, Message

REAL = Settings(paced=False, emulate=False, clip_norm=0.5)
TIMES = {"forward_ms": 2, "input_grad_ms": 2, "weight_grad_ms": 1}


class Gathered:
    """Replicas that need nothing and note what they are asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None]] = []

    def gather(self, chunk: int) -> None:
        self.asked.append(("gather", chunk))

    def reduce(self, chunk: int) -> None:
        self.asked.append(("reduce", chunk))

    def wait(self, chunk: int | None = None) -> None:
        self.asked.append(("wait", chunk))


def execute(
    problem,
    schedule,
    settings=REAL,
    *,
    iterations=1,
    rate=0.0,
    replicas=None,
    shared_wires=(),
    devices=None,
    data=batch,
    post_ahead_ns=0,
    between=lambda engine, iteration: None,
    at=MappingProxyType({}),
    timeouts_s=MappingProxyType({}),
):
    """Traces [rank][iteration], modules by position, devices by rank."""
    plan = lower(problem, schedule, message_bytes=FORMAT.size_bytes, post_ahead_ns=post_ahead_ns)
    modules = {position: module_at(position) for position in range(problem.positions)}
    devices = devices or [HostDevice() for _ in range(problem.stages)]

    def body(transport):
        transport.timeout_s = timeouts_s.get(transport.rank, transport.timeout_s)
        positions = [problem.position(transport.rank, chunk) for chunk in range(problem.chunks)]
        parameters = [p for position in positions for p in modules[position].parameters()]
        engine = CudaEngine(
            problem,
            plan.ranks[transport.rank],
            stages=[
                SplitBackward(
                    modules[p],
                    loss=nn.functional.mse_loss,
                    loss_scale=1 / problem.microbatches,
                    needs_input_grad=p > 0,
                )
                for p in positions
            ],
            step=PlainStep(torch.optim.SGD(parameters, lr=rate)),
            transport=transport,
            channels=HubChannels(transport),
            clock=Clock(),
            device=devices[transport.rank],
            message_format=FORMAT,
            batch=data,
            settings=settings,
            replicas=replicas,
            shared_wires=shared_wires,
            at=at.get(transport.rank, lambda iteration, number: None),
        )
        traces = []
        for index in range(iterations):
            traces.append(engine.iterate(index))
            between(engine, index)
        return traces

    return run_ranks(Hub(problem.stages), body), modules, devices


@pytest.mark.parametrize(("traversal", "fused"), [("ud", False), ("wave", False), ("loop", True)])
def test_training_is_that_of_one_process(traversal, fused):
    problem = Problem.uniform(traversal=traversal, stages=3, microbatches=3, **TIMES)
    schedule = random_schedule(problem, 3, fused=fused)
    traces, modules, _ = execute(problem, schedule, iterations=3, rate=0.1)
    model = nn.Sequential(*[module_at(position) for position in range(problem.positions)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for iteration in range(3):
        optimizer.zero_grad()
        losses = []
        for mb in range(3):
            x, target = batch(iteration, mb)
            loss = nn.functional.mse_loss(model(x), target)
            losses.append(loss.item())
            (loss / 3).backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        found = [t[iteration].loss for t in traces if t[iteration].loss is not None]
        assert found == [pytest.approx(sum(losses) / 3, rel=1e-5)]
        assert [t[iteration].gradient_norm for t in traces] == pytest.approx([norm] * 3, rel=1e-5)
    mine = [p for position in sorted(modules) for p in modules[position].parameters()]
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(mine, model.parameters(), strict=True))


def test_messages_queue_for_the_wire_and_wait_for_their_arrival():
    problem = Problem.uniform(stages=2, microbatches=3, sites=2, latency_ms=3, serialisation_ms=2, **TIMES)
    orders = [[Block(kind, 0, mb) for kind in "FB" for mb in range(3)]] * 2
    traces, _, _ = execute(problem, schedule_of(problem, orders), Settings(paced=False, emulate=True))
    for rank, kind in ((1, "F"), (0, "D")):
        free = 0
        ends = {
            b.block.microbatch: b.end_ns for b in traces[1 - rank][0].blocks if b.block.kind == kind.replace("D", "B")
        }
        for m in (m for m in traces[rank][0].messages if m.message.kind == kind):
            assert m.ready_ns == ends[m.message.microbatch]
            assert m.start_ns == max(m.ready_ns, free)
            assert m.served_ns - m.start_ns == 2_000_000
            # a rank that got to its post late, on a busy machine, has the whole way from there
            assert m.arrival_ns == max(m.start_ns, m.posted_ns) + 2_000_000 + 3_000_000
            assert m.resumed_ns >= m.arrival_ns
            free = m.served_ns
    starts = [b.start_ns for b in traces[1][0].blocks if b.block.kind == "F"]
    arrivals = [m.arrival_ns for m in traces[1][0].messages if m.message.kind == "F"]
    assert all(start >= arrival for start, arrival in zip(starts, arrivals, strict=True))
    assert traces[0][0].blocks_end_ns == max(b.end_ns for t in traces for b in t[0].blocks)


def test_receives_do_not_wait_for_blocks_and_sends_do():
    problem = Problem.uniform(stages=2, microbatches=6, **TIMES)
    orders = [[Block(kind, 0, mb) for mb in range(6) for kind in "FB"]] * 2
    _, _, devices = execute(problem, schedule_of(problem, orders))
    streams = {entry for entry in devices[0].launched if entry[0] != "after"}
    assert streams == {(("receive", 1), False), (("send", 1), True)}
    assert ("after",) in {entry[:1] for entry in devices[0].launched}  # a buffer used again waits for its release


@pytest.mark.parametrize("ahead", [None, 1_000_000_000])
def test_a_message_has_its_whole_way_to_go_from_its_post_on(ahead):
    problem = Problem.uniform(stages=2, microbatches=2, sites=2, latency_ms=20, **TIMES)
    orders = [[Block(kind, 0, mb) for kind in "FB" for mb in (0, 1)], [Block(k, 0, mb) for mb in (0, 1) for k in "FB"]]
    settings = Settings(paced=False, emulate=True)
    traces, _, _ = execute(problem, schedule_of(problem, orders), settings, post_ahead_ns=ahead)
    messages = {m.message: m for t in traces for m in t[0].messages}
    assert len(messages) == 4
    for m in messages.values():
        assert m.arrival_ns - max(m.start_ns, m.posted_ns) == 20_000_000
        assert m.resumed_ns >= m.arrival_ns
    second = messages[Message("F", 0, 1)]
    if ahead is None:  # posted when stage 1 is done with the first microbatch: 20 ms after that one had left
        assert second.posted_ns >= messages[Message("F", 0, 0)].arrival_ns
    else:  # posted before anything had been computed
        assert second.posted_ns < traces[1][0].blocks[0].start_ns


def test_the_device_is_set_by_the_hosts_clock_every_few_seconds():
    problem = Problem.uniform(stages=1, microbatches=1, **TIMES)
    devices = [HostDevice()]

    def between(engine, iteration):
        engine.keep_time(Clock(offset_ns=(0, 4, 6, 10, 12)[iteration] * 1_000_000_000))  # seconds that have gone by

    execute(problem, random_schedule(problem, 0), iterations=5, devices=devices, between=between)
    assert devices[0].settings == 2  # after six seconds and again after twelve


class Cells(HostDevice):
    """Notes on which stream each cell of a wire's state is used."""

    def __init__(self):
        super().__init__()
        self.used = {}
        depart = self.clock.depart

        def noting(ready, wire, delay, header):
            self.used.setdefault(wire.data_ptr(), set()).add(self.stream)
            depart(ready, wire, delay, header)

        self.clock.depart = noting


@pytest.mark.parametrize("emulate", [True, False])
@pytest.mark.parametrize("sites", [1, 3])
def test_no_two_streams_use_one_cell_of_a_wire(emulate, sites):
    problem = Problem.uniform(stages=3, microbatches=4, sites=sites, latency_ms=1, **TIMES)
    orders = [[Block(kind, 0, mb) for mb in range(4) for kind in "FB"]] * 3
    devices = [Cells() for _ in range(3)]
    settings = Settings(paced=False, emulate=emulate)
    execute(problem, schedule_of(problem, orders), settings, iterations=2, devices=devices)
    assert [sum(map(len, device.used.values())) == len(device.used) for device in devices] == [True] * 3
    if not (emulate and sites > 1):  # nothing queues: a cell for each of the sends, 4 and 8 and 4
        assert [len(device.used) for device in devices] == [4, 8, 4]


def test_what_fails_on_a_device_is_said_with_its_place():
    problem = Problem.uniform(stages=2, microbatches=2, **TIMES)
    schedule = random_schedule(problem, 0)

    def no_numbers(iteration, microbatch):
        x, target = batch(iteration, microbatch)
        return x, target * float("nan")

    with pytest.raises(CrosspipeError, match="iteration 0: the loss of rank 1 is nan; lower the learning rate"):
        execute(problem, schedule, data=no_numbers)

    class Full(HostDevice):
        def mark(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(CrosspipeError, match=r"out of memory at .*release.*: CUDA out of memory\. Tried"):
        execute(problem, schedule, devices=[Full(), Full()])


class Slow(HostDevice):
    """It shows a block more at every look, up to `most`, and is done when all are shown."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.shown, self.blocks = most, 0, 1

    def done(self, mark):
        return self.shown >= self.blocks

    def peek(self, notes):
        self.shown, self.blocks = min(self.shown + 1, self.most), len(notes)
        return [[start, end if row < self.shown else 0] for row, (start, end) in enumerate(notes.tolist())]


def test_a_device_that_stands_still_is_told_from_one_that_is_slow(monkeypatch):
    """Rank 1 has F0 B0 F1 B1, and F1 waits for a message of rank 0. The time-out counts from the last block's end."""
    monkeypatch.setattr("crosspipe.execute.cuda_engine._PEEK_S", 0.1)
    problem = Problem.uniform(stages=2, microbatches=2, **TIMES)
    schedule = schedule_of(problem, [[Block(kind, 0, mb) for mb in range(2) for kind in "FB"]] * 2)
    actions = lower(problem, schedule, message_bytes=FORMAT.size_bytes).ranks[1].actions
    said = []
    at = {1: lambda iteration, number: said.append(actions[number].kind if number < len(actions) else "end")}
    rows, _, devices = execute(problem, schedule, devices=[HostDevice(), Slow(4)], at=at, timeouts_s={1: 0.3})
    assert len(rows[1]) == 1
    assert devices[1].shown == 4  # after 0.4 s
    assert said[len(actions) :] == ["end", "compute", "wait", "compute", "end"]

    lost = r"'wait for message F1 .*' \(stage 1, block 3 of 4, .*: the device has ended nothing for 0.3 s"
    with pytest.raises(PeerLost, match=lost) as caught:
        execute(problem, schedule, devices=[HostDevice(), Slow(2)], timeouts_s={1: 0.3})
    assert caught.value.peer == 0


def test_gathers_and_reductions_stand_where_the_plan_says():
    problem = Problem.uniform(stages=1, microbatches=1, **TIMES)
    replica = DataParallel(reduce=Hop(), gather=Hop())
    problem = msgspec.structs.replace(problem, data_parallel=((replica,),))
    replicas = Gathered()
    traces, _, _ = execute(problem, random_schedule(problem, 0), replicas=replicas)
    assert replicas.asked == [("gather", 0), ("wait", 0), ("reduce", 0), ("wait", 0)]
    life = {m.message.kind: m for m in traces[0][0].messages}
    blocks = traces[0][0].blocks
    assert life["gather"].arrival_ns <= blocks[0].start_ns
    assert blocks[-1].end_ns == life["reduce"].ready_ns <= life["reduce"].arrival_ns == traces[0][0].blocks_end_ns


def test_what_a_device_cannot_do_is_refused():
    problem = Problem.uniform(stages=2, microbatches=1, sites=2, latency_ms=1, **TIMES)
    schedule = random_schedule(problem, 0)
    with pytest.raises(FieldError, match=r"run\.pace = 'given': blocks on a GPU are not paced; use run=real"):
        execute(problem, schedule, Settings())
    emulated = Settings(paced=False)
    with pytest.raises(FieldError, match="wire = '0>1': several GPUs send over it"):
        execute(problem, schedule, emulated, shared_wires=("0>1",))
    replica = DataParallel(reduce=Hop(wire="0>1"))
    problem = msgspec.structs.replace(problem, data_parallel=((replica,),) * 2)
    with pytest.raises(FieldError, match="data_parallel = '0>1': delays of gradient reductions"):
        execute(problem, schedule, emulated)


def test_without_a_gpu_nccl_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FieldError, match=r"run\.transport = 'nccl': .*; use gloo, or run where GPUs are"):
        check_nccl()
