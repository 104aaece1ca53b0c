"""What really ran, on random orders: the parts of the excess add up, and re-simulation sees no more than happened."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess_ranks import FORMAT, execute
from orders import random_schedule

from crosspipe.execute.attribution import PARTS
from crosspipe.execute.engine import Settings
from crosspipe.execute.lowering import lower
from crosspipe.execute.recording import iteration
from crosspipe.problem import Problem


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["ud", "wave", "loop"]),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from([0, None]),
)
def test_the_excess_of_any_order_adds_up(traversal, pairs, microbatches, seed, fused, ahead):
    times = {"forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1, "latency_ms": 2, "serialisation_ms": 1}
    problem = Problem.uniform(traversal=traversal, stages=2 * pairs, microbatches=microbatches, sites=2, **times)
    plan = lower(
        problem, random_schedule(problem, seed, fused=fused), post_ahead_ns=ahead, message_bytes=FORMAT.size_bytes
    )
    (traces,), _ = execute(problem, plan, Settings(paced=False))
    done = iteration(problem, traces, plan.predicted_makespan_ns, warmup=False)
    assert tuple(done.excess_ns) == PARTS
    assert sum(done.excess_ns.values()) == done.makespan_ns - plan.predicted_makespan_ns
    assert done.excess_ns["waiting"] >= 0
    assert 0 < done.resimulated_makespan_ns <= done.raw_makespan_ns  # no rank waits for the engine there
