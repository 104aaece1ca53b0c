"""The compiled kernel against its readable twin, on random problems."""

from __future__ import annotations

from hypothesis import given, settings
from random_problems import CASES

from crosspipe.errors import Deadlock
from crosspipe.schedule import kernel, simulate, simulate_reference


@settings(max_examples=800, deadline=None)
@given(case=CASES)
def test_kernel_equals_twin(case):
    problem, schedule = case
    compiled, encoded = kernel.compile_problem(problem), kernel.encode(problem, schedule)
    makespan, peaks = kernel.evaluate(compiled, encoded)
    predicted, expected = outcome(simulate, problem, schedule), outcome(simulate_reference, problem, schedule)
    assert predicted == expected
    if isinstance(expected, list):
        assert makespan == kernel.DEADLOCKED
        return
    assert makespan == expected.makespan_ns
    assert tuple(peaks) == expected.peak_memory_bytes()
    assert kernel.evaluate(compiled, encoded, makespan)[0] == makespan
    if makespan:
        assert kernel.evaluate(compiled, encoded, makespan - 1)[0] >= makespan


def outcome(model, problem, schedule):
    """The Timeline, or the cycle of the Deadlock."""
    try:
        return model(problem, schedule)
    except Deadlock as deadlock:
        return deadlock.cycle
