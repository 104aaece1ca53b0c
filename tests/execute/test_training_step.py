"""Replicas, ZeRO-1 and tied embeddings over threads, against one process that trains on the whole batch."""

from __future__ import annotations

import threading

import msgspec
import pytest
import torch
from inprocess_ranks import run_ranks
from orders import random_schedule
from thread_groups import Meeting

from crosspipe.execute.clock import Clock
from crosspipe.execute.engine import Engine, Settings
from crosspipe.execute.inprocess import Hub
from crosspipe.execute.lowering import lower
from crosspipe.execute.plan import Format
from crosspipe.execute.replication import Pipeline, places
from crosspipe.execute.training_step import Tied, TrainingStep, join_ends
from crosspipe.model import SplitBackward, build_stage, token_loss
from crosspipe.model.optimizer import build_optimizer
from crosspipe.problem import Hop, Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.problem import DataParallel

MODEL = ModelConfig(
    vocabulary=61, hidden=16, intermediate=24, heads=2, kv_heads=1, layers=4, sequence=6, microbatch_size=2
)
FORMAT = Format((2, 6, 16), "float32", 2 * 6 * 16 * 4)
CLIP, RATE = 0.5, 0.01


def batch(iteration: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * iteration + microbatch)
    tokens, targets = torch.randint(61, (2, 2, 6), generator=generator)
    return tokens, targets


def one_process(config: ModelConfig, microbatches: int, iterations: int):
    """Losses, norms and final parameters of plain training."""
    model = build_stage(config, ((config.layers,),), 0, seed=5)
    optimizer = build_optimizer(model.parameters(), learning_rate=RATE)
    losses, norms = [], []
    for iteration in range(iterations):
        optimizer.zero_grad()
        mine = []
        for mb in range(microbatches):
            tokens, targets = batch(iteration, mb)
            loss = token_loss(model(tokens), targets)
            (loss / microbatches).backward()
            mine.append(loss.item())
        losses.append(sum(mine) / microbatches)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
    return losses, norms, {name: p.detach() for name, p in model.named_parameters()}


def problem_of(traversal: str, stages: int, microbatches: int, *, replicated: bool, shard: bool) -> Problem:
    problem = Problem.uniform(
        traversal=traversal, stages=stages, microbatches=microbatches, forward_ms=1, input_grad_ms=1, weight_grad_ms=1
    )
    if not replicated:
        return problem
    hop = Hop(latency_ns=1000)
    row = (DataParallel(reduce=hop, gather=hop if shard else None),) * problem.chunks
    return msgspec.structs.replace(problem, data_parallel=(row,) * stages)


def train(config, split, traversal, replicas, *, shard=False, iterations=range(3), microbatches=2, seed=0, states=None):
    """Traces [replica * stages + stage][iteration], and for every rank its TrainingStep; begins with `states[rank]`."""
    stages = len(split)
    problem = problem_of(traversal, stages, microbatches, replicated=replicas > 1, shard=shard)
    plan = lower(problem, random_schedule(problem, seed), message_bytes=FORMAT.size_bytes)
    meetings = {stage: Meeting(replicas) for stage in range(stages)}
    ends = places(problem, replicas)
    tied_meeting = Meeting(len(ends))
    steps: dict[int, TrainingStep] = {}
    lock = threading.Lock()

    def body(transport):
        replica, stage = divmod(transport.rank, stages)
        modules = [build_stage(config, split, stage, c, traversal=traversal, seed=5) for c in range(problem.chunks)]
        weight = join_ends(modules)
        tied = None
        if weight is not None and len(ends) > 1:
            tied = Tied(weight, tied_meeting.member(ends.index(transport.rank)))
        step = TrainingStep(
            modules,
            lambda parameters: build_optimizer(parameters, learning_rate=RATE),
            replicas=meetings[stage].member(replica) if replicas > 1 else None,
            shard=shard,
            tied=tied,
        )
        with lock:
            steps[transport.rank] = step
        if states is not None:
            step.load(states[transport.rank])
        engine = Engine(
            problem,
            plan.ranks[stage],
            stages=[SplitBackward(m, loss_scale=1 / (microbatches * replicas)) for m in modules],
            step=step,
            replicas=step,
            transport=Pipeline(transport, stages),
            clock=Clock(),
            wires={},
            message_format=FORMAT,
            batch=lambda i, mb: batch(i, replica * microbatches + mb),
            settings=Settings(paced=False, emulate=False, clip_norm=CLIP),
        )
        traces = [engine.iterate(i) for i in iterations]
        for bucket in range(problem.chunks):
            step.gather(bucket)
        step.wait()
        return traces

    return run_ranks(Hub(stages * replicas), body), steps


@pytest.mark.parametrize(("replicas", "shard"), [(1, False), (2, False), (2, True), (3, True)])
@pytest.mark.parametrize(
    ("traversal", "split", "tied_embedding"),
    [
        ("ud", ((1,), (3,)), False),
        ("ud", ((1,), (3,)), True),
        ("wave", ((1, 1), (1, 1)), True),
        ("loop", ((1, 1), (1, 1)), True),
        ("ud", ((4,),), True),
    ],
)
def test_training_is_that_of_one_process(traversal, split, replicas, shard, tied_embedding) -> None:
    config = msgspec.structs.replace(MODEL, tied_embedding=tied_embedding)
    traces, steps = train(config, split, traversal, replicas, shard=shard)
    losses, norms, parameters = one_process(config, 2 * replicas, 3)
    stages = len(split)
    for i in range(3):
        mine = [t[i].loss for t in traces if t[i].loss is not None]
        assert len(mine) == replicas
        assert sum(mine) / replicas == pytest.approx(losses[i], rel=1e-5)
        assert {t[i].gradient_norm for t in traces} == {traces[0][i].gradient_norm}
        assert traces[0][i].gradient_norm == pytest.approx(norms[i], rel=1e-5)
    found: dict[str, torch.Tensor] = {}
    for rank in range(stages * replicas):
        for name, p in steps[rank].parameters:
            assert torch.equal(found.setdefault(name, p.detach()), p), (rank, name)  # copies are the same bits
    assert found.keys() == parameters.keys()
    for name, p in found.items():  # Adam's first steps are signs of gradients: compare the way gone
        torch.testing.assert_close(p, parameters[name], rtol=1e-4, atol=2e-5)


def test_zero_1_holds_a_share_of_the_moments() -> None:
    _, steps = train(MODEL, ((2,), (2,)), "ud", 2, shard=True, iterations=range(1))
    for rank in range(4):
        held = sum(v.numel() for s in steps[rank].optimizer.state.values() for v in s.values() if v.ndim)
        whole = sum(p.numel() for _, p in steps[rank].parameters)
        assert held == 2 * -(-whole // 2)  # two moments of half the parameters, rounded up


def test_gradients_of_shards_can_be_collected_for_a_comparison() -> None:
    config = msgspec.structs.replace(MODEL, tied_embedding=True)
    traces, steps = train(config, ((2,), (2,)), "ud", 2, shard=True, iterations=range(1))
    run_ranks(Hub(4), lambda transport: steps[transport.rank].collect_gradients())
    model = build_stage(config, ((4,),), 0, seed=5)
    for mb in range(4):
        tokens, targets = batch(0, mb)
        (token_loss(model(tokens), targets) / 4).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for rank in range(4):
        for name, p in steps[rank].parameters:
            gradient = p.grad / traces[rank][0].clip_factor
            assert (gradient - expected[name]).norm() / expected[name].norm() < 1e-6, name


@pytest.mark.parametrize(("replicas", "shard"), [(1, False), (2, True)])
def test_what_is_kept_is_enough_to_go_on_to_the_last_bit(replicas, shard) -> None:
    config = msgspec.structs.replace(MODEL, tied_embedding=True)
    split = ((1,), (3,))
    whole, _ = train(config, split, "ud", replicas, shard=shard, iterations=range(4))
    first, steps = train(config, split, "ud", replicas, shard=shard, iterations=range(2))
    states = {rank: {name: value.clone() for name, value in step.state().items()} for rank, step in steps.items()}
    second, again = train(config, split, "ud", replicas, shard=shard, iterations=range(2, 4), states=states)
    assert {rank: step.state().keys() for rank, step in again.items()} == {r: s.keys() for r, s in states.items()}
    for rank in range(2 * replicas):
        assert [t.loss for t in first[rank] + second[rank]] == [t.loss for t in whole[rank]]
        assert [t.gradient_norm for t in first[rank] + second[rank]] == [t.gradient_norm for t in whole[rank]]


def test_a_reduction_starts_after_its_chunks_last_w_and_runs_beside_the_blocks_that_are_left() -> None:
    traces, _ = train(MODEL, ((1, 1), (1, 1)), "wave", 2, iterations=range(1), microbatches=3, seed=4)
    blocks_beside = 0
    for rank, (trace,) in enumerate(traces):
        reduced = {m.message.position: m for m in trace.messages if m.message.kind == "reduce"}
        stage = rank % 2
        assert sorted(reduced) == [stage, 3 - stage]  # the wave's positions of its two chunks
        for position, message in reduced.items():
            chunk = 0 if position == stage else 1
            last = max(i for i, b in enumerate(trace.blocks) if b.block.kind == "W" and b.block.chunk == chunk)
            assert message.ready_ns == trace.blocks[last].raw_end_ns
            blocks_beside += len(trace.blocks) - 1 - last
            assert message.arrival_ns <= trace.blocks_end_ns
    assert blocks_beside > 0
