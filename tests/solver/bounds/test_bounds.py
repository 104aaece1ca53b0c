"""The bound never exceeds an optimum that another solver proved, equals it where the field knows it, and is fast."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given, settings
from optimum import optimum_ns
from random_problems import problems

from crosspipe.errors import Infeasible
from crosspipe.problem import DataParallel, Hop, Problem
from crosspipe.solver.bounds import lower_bound


def reference_problem(latency_ms: float, release_input_grad: float = 0.5) -> Problem:
    return Problem.uniform(
        stages=4,
        microbatches=8,
        sites=2,
        forward_ms=200,
        input_grad_ms=200,
        weight_grad_ms=200,
        latency_ms=latency_ms,
        memory_microbatches=4,
        release_input_grad=release_input_grad,
    )


@pytest.mark.parametrize(
    ("latency_ms", "release_input_grad", "optimum_ms"),
    [  # proved by two solvers, see tests/reference
        *[(0, 0.5, 5400), (100, 0.5, 5800), (200, 0.5, 6200), (400, 0.5, 7000)],
        *[(0, 0, 5400), (100, 0, 5800), (200, 0, 6200), (400, 0, 7000)],
        *[(100, 1, 5600), (400, 1, 6200)],
    ],
)
def test_meets_the_known_optimum(latency_ms: float, release_input_grad: float, optimum_ms: int) -> None:
    assert lower_bound(reference_problem(latency_ms, release_input_grad)).value_ns == optimum_ms * 1_000_000


@settings(max_examples=100, deadline=None)
@given(
    problem=problems(traversals=("ud",), stages=(1, 3), microbatches=(1, 4), longest_ns=5, shortest_ns=1)
    | problems(traversals=("wave", "loop"), stages=(1, 2), microbatches=(1, 3), most_chunks=2, longest_ns=5)
)
def test_never_exceeds_a_proven_optimum(problem: Problem) -> None:
    best = optimum_ns(problem, time_limit_s=2)
    if best is not None:
        assert lower_bound(problem).value_ns <= best


def test_one_block_after_another() -> None:
    # one stage: F 3, D 4, W 5 ms, twice; nothing idles
    problem = Problem.uniform(stages=1, microbatches=2, forward_ms=3, input_grad_ms=4, weight_grad_ms=5)
    assert lower_bound(problem).value_ns == 24_000_000


def test_counts_a_shorter_fused_backward() -> None:
    # F 3 and B 6 (instead of 4 + 5), twice
    problem = Problem.uniform(stages=1, microbatches=2, forward_ms=3, input_grad_ms=4, weight_grad_ms=5)
    cost = msgspec.structs.replace(problem.costs[0][0], fused_backward_ns=6_000_000)
    bound = lower_bound(msgspec.structs.replace(problem, costs=((cost,),)))
    assert bound.value_ns == 18_000_000
    assert bound.assumptions


def test_data_parallel_messages_count() -> None:
    # gather 7 + 1, then 24 of blocks, then reduction 10 + 2
    problem = Problem.uniform(stages=1, microbatches=2, forward_ms=3, input_grad_ms=4, weight_grad_ms=5)
    parallel = DataParallel(
        reduce=Hop(latency_ns=2_000_000, serialisation_ns=10_000_000, wire="0>1"),
        gather=Hop(latency_ns=1_000_000, serialisation_ns=7_000_000, wire="0>1"),
    )
    problem = msgspec.structs.replace(problem, data_parallel=((parallel,),))
    assert lower_bound(problem).value_ns == 44_000_000


def test_a_slow_wire_binds() -> None:
    # two stages of F = D = W = 1 ms, 10 messages of 50 ms each way: F, 500, then F, D, a message of 50 back, D, W
    problem = Problem.uniform(
        stages=2, microbatches=10, sites=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1, serialisation_ms=50
    )
    bound = lower_bound(problem)
    assert bound.value_ns == 555_000_000
    assert "wire 0>1 binds" in bound.explanation


def test_says_which_stage_idles_and_what_memory_buys() -> None:
    # stage 0: the gradient is 3 + 3 blocks and 2 crossings away, 4 F fit: 200 + 1400 - 800 idle; the last F waits 1400
    # for its D, 3 pairs can run: 200 idle. With 5 fitting, the bound is that of stage 3: three F before it
    words = lower_bound(reference_problem(100)).explanation
    assert "stage 0 binds: its blocks take 4800 ms" in words
    assert "it idles 800 ms before its first D, whose gradient is 1400 ms away, with 4 microbatches in memory" in words
    assert "200 ms after its last F" in words
    assert "one more microbatch of memory per stage would lower this bound by" in words


def test_with_recomputation_the_w_that_cannot_wait_bind() -> None:
    """Stage 7 of 8: work 32 * (38 + 84 + 21) = 4576 ms, 7 * 38 + 85.5 before its first F; after its last D the tail is
    7 * 84 + 85.5 + 21, in which its W and the 14 that fit beside it in 8 microbatches run: 694.5 - 15 * 21 idle."""
    problem = Problem.uniform(
        stages=8,
        microbatches=32,
        sites=2,
        forward_ms=38,
        input_grad_ms=46,
        weight_grad_ms=21,
        latency_ms=76,
        serialisation_ms=9.5,
        memory_microbatches=8,
    )
    costs = tuple((row[0].recomputed(2**20 // 162),) for row in problem.costs)
    bound = lower_bound(msgspec.structs.replace(problem, costs=costs))
    assert bound.value_ns == (4576 + 351.5 + 379.5) * 1_000_000
    assert "379.5 ms after its last D, when only W still in memory can run" in bound.explanation


def test_refuses_a_limit_below_one_microbatch() -> None:
    problem = Problem.uniform(
        stages=2, microbatches=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1, memory_microbatches=0.5
    )
    with pytest.raises(Infeasible, match=r"activation_limit_bytes\[0\]"):
        lower_bound(problem)


@pytest.mark.serial
@pytest.mark.parametrize("traversal", ["ud", "wave", "loop"])
def test_is_fast_at_64_stages(traversal: str) -> None:
    problem = Problem.uniform(
        traversal=traversal,
        stages=64,
        microbatches=128,
        sites=2,
        forward_ms=38,
        input_grad_ms=46,
        weight_grad_ms=21,
        latency_ms=9.5,
        serialisation_ms=76,
        memory_microbatches=64,
    )
    lower_bound(problem)
    started = time.process_time()
    lower_bound(problem)
    assert time.process_time() - started < 0.1
