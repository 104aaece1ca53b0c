"""The engine over threads: the gradients of one process, whatever the order; anchors that follow the model's rules."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess_ranks import FORMAT, batch, execute, module_at
from orders import random_schedule, schedule_of
from torch import nn

from crosspipe.errors import CrosspipeError, FieldError
from crosspipe.execute.engine import Settings
from crosspipe.execute.lowering import lower
from crosspipe.execute.recording import iteration as recorded
from crosspipe.problem import Hop, Problem
from crosspipe.schedule import Block, Message, simulate
from crosspipe.solver import solve

TIMES = {"forward_ms": 2, "input_grad_ms": 2, "weight_grad_ms": 1}
REAL = Settings(paced=False, emulate=False)


def one_process(problem: Problem, iteration: int = 0) -> list[torch.Tensor]:
    """Gradients of the mean loss by plain autograd, of all positions in order."""
    model = nn.Sequential(*[module_at(position) for position in range(problem.positions)])
    for mb in range(problem.microbatches):
        x, target = batch(iteration, mb)
        (nn.functional.mse_loss(model(x), target) / problem.microbatches).backward()
    return [p.grad for p in model.parameters()]


def gradients(modules: dict[int, nn.Module]) -> list[torch.Tensor]:
    return [p.grad for position in sorted(modules) for p in modules[position].parameters()]


def relative_error(mine: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(mine, reference, strict=True))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zbh1", "interleaved_1f1b"])
def test_static_families_give_the_bits_of_one_process(name):
    traversal = "loop" if name == "interleaved_1f1b" else "ud"
    problem = Problem.uniform(traversal=traversal, stages=4, microbatches=8, sites=2, **TIMES)
    plan = lower(problem, solve(problem, name), message_bytes=FORMAT.size_bytes)
    traces, modules = execute(problem, plan, REAL)
    reference = one_process(problem)
    assert all(torch.equal(a, b) for a, b in zip(gradients(modules), reference, strict=True))
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in reference))
    assert [t.gradient_norm for t in traces[0]] == pytest.approx([norm] * 4, rel=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["ud", "wave", "loop"]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from([0, 3_000_000, None]),
)
def test_any_valid_order_gives_the_gradients_of_one_process(traversal, stages, microbatches, seed, fused, ahead):
    problem = Problem.uniform(
        traversal=traversal, stages=stages, microbatches=microbatches, weight_grad_pieces=2, **TIMES
    )
    schedule = random_schedule(problem, seed, fused=fused, pieces=2)
    plan = lower(problem, schedule, post_ahead_ns=ahead, message_bytes=FORMAT.size_bytes)
    _, modules = execute(problem, plan, REAL)
    assert relative_error(gradients(modules), one_process(problem)) < 1e-6


def test_a_listed_message_order_changes_nothing_in_the_gradients():
    problem = Problem.uniform(stages=2, microbatches=2, sites=2, latency_ms=1, serialisation_ms=1, **TIMES)
    orders = [[Block(kind, 0, mb) for kind in "FB" for mb in (0, 1)]] * 2
    schedule = schedule_of(problem, orders, messages={"0>1": (Message("F", 0, 1), Message("F", 0, 0))})
    plan = lower(problem, schedule, message_bytes=FORMAT.size_bytes)
    traces, modules = execute(problem, plan, Settings(paced=False, emulate=True))
    assert relative_error(gradients(modules), one_process(problem)) < 1e-6
    life = {m.message: m for m in traces[0][1].messages}
    late, early = life[Message("F", 0, 0)], life[Message("F", 0, 1)]
    assert late.ready_ns < early.ready_ns  # held back,
    assert late.start_ns == early.served_ns == early.ready_ns + 1_000_000  # served right after


def test_training_steps_equal_those_of_one_process():
    problem = Problem.uniform(stages=3, microbatches=4, **TIMES)
    plan = lower(problem, solve(problem, "zbh1"), message_bytes=FORMAT.size_bytes)
    traces, modules = execute(problem, plan, msgspec.structs.replace(REAL, clip_norm=0.5), iterations=3, rate=0.1)
    model = nn.Sequential(*[module_at(position) for position in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for iteration in range(3):
        optimizer.zero_grad()
        losses = []
        for mb in range(4):
            x, target = batch(iteration, mb)
            loss = nn.functional.mse_loss(model(x), target)
            losses.append(loss.item())
            (loss / 4).backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        assert traces[iteration][2].loss == pytest.approx(sum(losses) / 4, rel=1e-5)
        assert traces[iteration][0].gradient_norm == pytest.approx(norm, rel=1e-5)
        assert traces[iteration][0].clip_factor == pytest.approx(min(1.0, 0.5 / norm), rel=1e-4)
    mine = [p for position in range(3) for p in modules[position].parameters()]
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(mine, model.parameters(), strict=True))


@pytest.mark.serial
def test_anchors_follow_the_model_and_never_come_early():
    problem = Problem.uniform(traversal="wave", stages=2, microbatches=3, sites=2, latency_ms=3, serialisation_ms=1,
                              **TIMES)  # fmt: skip
    schedule = random_schedule(problem, 5)
    plan = lower(problem, schedule, message_bytes=FORMAT.size_bytes)
    settings_ = Settings(gradient_norm_ns=2_000_000, optimizer_step_ns=3_000_000)
    traces = execute(problem, plan, settings_)[0][0]
    arrival = {m.message: m for t in traces for m in t.messages}
    free: dict[str, int] = {}
    for m in sorted(arrival.values(), key=lambda m: m.start_ns):
        hop = problem.message_hop(m.message.kind, m.message.position)
        if hop.wire is not None:  # served in turn, for its serialisation, and not before its block really ended
            assert m.start_ns == max(m.ready_ns, free.get(hop.wire, 0))
            assert m.served_ns - m.start_ns == 1_000_000
            assert m.arrival_ns == max(m.served_ns + 3_000_000, m.posted_ns + 4_000_000)
            free[hop.wire] = m.served_ns
        assert m.resumed_ns >= m.arrival_ns
    for trace in traces:
        planned = trace.begin_ns
        for b in trace.blocks:
            position = problem.position(trace_rank(problem, traces, trace), b.block.chunk)
            source = Message("F", position - 1, b.block.microbatch)
            if b.block.kind == "D":
                source = Message("D", position + 1, b.block.microbatch)
            came = arrival[source].arrival_ns if b.block.kind != "W" and source in arrival else 0
            assert b.start_ns == max(planned, came)
            cost = problem.costs[0][b.block.chunk]
            assert b.end_ns - b.start_ns == cost.duration_ns(b.block.kind)
            assert b.raw_end_ns >= b.end_ns
            assert b.raw_start_ns <= b.computed_ns <= b.raw_end_ns
            planned = b.end_ns
        assert trace.norm_end_ns == trace.blocks_end_ns + 2_000_000
        assert trace.step_end_ns == trace.norm_end_ns + 3_000_000
    # what really happened cannot be shorter than the model's makespan
    assert traces[0].blocks_end_ns - traces[0].begin_ns >= simulate(problem, schedule).makespan_ns


def trace_rank(problem, traces, trace) -> int:
    return next(rank for rank in range(problem.stages) if traces[rank] is trace)


@pytest.mark.serial
def test_a_block_slower_than_its_anchor_is_counted_and_delays_its_message():
    problem = Problem.uniform(stages=2, microbatches=1, forward_ms=0, input_grad_ms=50, weight_grad_ms=50)
    schedule = random_schedule(problem, 0)
    plan = lower(problem, schedule, message_bytes=FORMAT.size_bytes)
    traces = execute(problem, plan, Settings())[0][0]
    forward = traces[0].blocks[0]  # planned to take no time at all
    assert forward.block.kind == "F"
    assert forward.lateness_ns == forward.raw_end_ns - forward.start_ns > 0
    message = next(m for m in traces[1].messages if m.message.kind == "F")
    assert message.ready_ns == forward.raw_end_ns
    assert traces[1].blocks[0].start_ns == forward.raw_end_ns


def test_gradients_that_are_not_finite_end_the_run_on_all_ranks_with_their_rank():
    problem = Problem.uniform(stages=2, microbatches=1, **TIMES)
    plan = lower(problem, random_schedule(problem, 0, fused=True), message_bytes=FORMAT.size_bytes)
    with pytest.raises(CrosspipeError, match=r"iteration 1: the (loss|gradient norm) of rank \d is (nan|inf)"):
        execute(problem, plan, REAL, iterations=2, rate=math.inf)


def test_buffers_of_another_size_than_the_messages_are_refused():
    problem = Problem.uniform(stages=2, microbatches=1, **TIMES)
    plan = lower(problem, random_schedule(problem, 0), message_bytes=12)
    with pytest.raises(FieldError, match=f"messages are {FORMAT.size_bytes} bytes"):
        execute(problem, plan, REAL)


def test_hops_without_a_wire_delay_but_do_not_queue():
    problem = Problem.uniform(stages=2, microbatches=2, **TIMES)
    hop = Hop(latency_ns=1_000_000, serialisation_ns=5_000_000)
    problem = msgspec.structs.replace(problem, forward_hops=(hop,))
    orders = [[Block(kind, 0, mb) for kind in "FB" for mb in (0, 1)]] * 2
    plan = lower(problem, schedule_of(problem, orders), message_bytes=FORMAT.size_bytes)
    traces = execute(problem, plan, Settings(paced=False))[0][0]
    for m in traces[1].messages:
        assert (m.start_ns, m.arrival_ns) == (m.ready_ns, max(m.ready_ns, m.posted_ns) + 6_000_000)


@pytest.mark.serial
def test_receives_posted_at_use_cost_the_way_that_early_ones_hide():
    # 20 ms blocks and latency; stage 0: F0 F1 B0 B1, stage 1: F0 B0 F1 B1. Early: F1 is there when B0 ends at 100 ms.
    # At use it starts then: F1 120-140, B1 140-180, D1 there at 200 (posted at 160), B1 of stage 0 200-240.
    times = {"forward_ms": 20, "input_grad_ms": 20, "weight_grad_ms": 20}
    problem = Problem.uniform(stages=2, microbatches=2, sites=2, latency_ms=20, **times)
    orders = [[Block(*b) for b in (("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1))]]
    orders.append([orders[0][i] for i in (0, 2, 1, 3)])
    schedule = schedule_of(problem, orders)
    assert simulate(problem, schedule).makespan_ns == 220_000_000
    plan = lower(problem, schedule, post_ahead_ns=None, message_bytes=FORMAT.size_bytes)
    traces = execute(problem, plan, Settings())[0][0]
    life = {m.message: m for trace in traces for m in trace.messages}
    f1 = life[Message("F", 0, 1)]
    assert f1.posted_ns > f1.ready_ns
    assert f1.arrival_ns == f1.posted_ns + 20_000_000
    assert traces[0].blocks_end_ns - traces[0].begin_ns >= 240_000_000


@pytest.mark.serial
def test_an_iteration_takes_what_was_predicted_and_not_much_more():
    problem = Problem.uniform(
        stages=4, microbatches=4, sites=2, forward_ms=20, input_grad_ms=20, weight_grad_ms=20, latency_ms=20
    )
    plan = lower(problem, solve(problem, "1f1b"), message_bytes=FORMAT.size_bytes)
    runs = execute(problem, plan, Settings(), iterations=4)[0]
    done = [recorded(problem, row, plan.predicted_makespan_ns, warmup=False) for row in runs]
    for name in ("makespan_ns", "raw_makespan_ns", "resimulated_makespan_ns"):  # the best of four: machines are busy
        ratios = [getattr(i, name) / plan.predicted_makespan_ns for i in done]
        assert 0.99 < min(ratios) < 1.25, (name, ratios)
