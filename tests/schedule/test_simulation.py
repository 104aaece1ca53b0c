"""The compiled model and its readable twin, against makespans worked out by others or by hand."""

from __future__ import annotations

import pytest

from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, simulate, simulate_reference

MODELS = pytest.mark.parametrize("model", [simulate, simulate_reference])


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B with fused B, as in Narayanan et al. (SC'21)."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, microbatches)
        order = [Block("F", 0, mb) for mb in range(ahead)]
        for mb in range(microbatches):
            order.append(Block("B", 0, mb))
            if mb + ahead < microbatches:
                order.append(Block("F", 0, mb + ahead))
        orders.append(tuple(order))
    return Schedule(traversal="ud", stages=stages, chunks=1, microbatches=microbatches, orders=tuple(orders))


@MODELS
@pytest.mark.parametrize(("latency", "makespan"), [(0, 6600), (100, 7400), (200, 8200), (400, 9800)])
def test_1f1b_reference_makespans(model, latency, makespan):
    problem = Problem.uniform(
        stages=4, microbatches=8, sites=2, forward_ms=200, input_grad_ms=200, weight_grad_ms=200, latency_ms=latency
    )
    timeline = model(problem, one_f_one_b(4, 8))
    assert timeline.makespan_ns == makespan * 1_000_000
    # stage s of 1F1B holds p - s microbatches (tests/reference/README.md: one microbatch is 2**20 bytes)
    assert timeline.peak_memory_bytes() == tuple((4 - s) << 20 for s in range(4))
