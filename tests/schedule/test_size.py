"""Problems with more blocks than anybody schedules are refused at once, with the count that goes."""

from __future__ import annotations

import pytest

from crosspipe.errors import FieldError, UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule, check, simulate, simulate_reference
from crosspipe.schedule.order import MOST_BLOCKS, require_size
from crosspipe.solver import SCHEDULES, solve


def problem(stages: int, microbatches: int, **changes: object) -> Problem:
    times = {"forward_ms": 3, "input_grad_ms": 3, "weight_grad_ms": 2}
    return Problem.uniform(stages=stages, microbatches=microbatches, **times, **changes)


@pytest.mark.parametrize(
    ("sizes", "pieces", "words"),
    [  # F, D and W of every microbatch on every stage: at most 1e6 blocks
        ((4, 10**7), 1, "microbatches = 10000000: makes 120000000 blocks, .*; use at most 83333"),
        ((500_000, 1), 1, "stages = 500000: makes 1500000 blocks, .*; use at most 333333"),
        ((64, 128), 200, "weight_grad_pieces = 200: makes 1654784 blocks, .*; use at most 120"),
        ((1, 1), 5000, "weight_grad_pieces = 5000: are more pieces than a W has; use at most 4095"),
    ],
)
def test_too_many_blocks_name_the_most_that_go(sizes: tuple[int, int], pieces: int, words: str) -> None:
    with pytest.raises(FieldError, match=words):
        require_size(problem(*sizes, weight_grad_pieces=pieces))


@pytest.mark.parametrize(("sizes", "pieces"), [((4, 83333), 1), ((64, 128), 120), ((1, 1), 4095)])
def test_as_many_as_the_error_says_do_go(sizes: tuple[int, int], pieces: int) -> None:
    large = problem(*sizes, weight_grad_pieces=pieces)
    require_size(large)
    assert large.positions * large.microbatches * (2 + pieces) <= MOST_BLOCKS


@pytest.mark.parametrize("name", [name for name, entry in SCHEDULES.items() if entry.traversal in (None, "ud")])
def test_solve_refuses_by_any_name(name: str) -> None:
    with pytest.raises(FieldError, match="use at most 83333"):
        solve(problem(4, 10**7), name)


def test_models_and_checker_refuse() -> None:
    large = problem(1, 10**7)
    empty = Schedule(traversal="ud", stages=1, chunks=1, microbatches=10**7, orders=((),))
    for model in (simulate, simulate_reference):
        with pytest.raises(FieldError, match="microbatches = 10000000"):
            model(large, empty)
    assert [violation.kind for violation in check(large, empty)] == ["shape"]


def test_more_pieces_than_the_greedy_plans_are_refused() -> None:
    """64 x 128: 24576 blocks, at most 2e7 pieces."""
    with pytest.raises(UsageError, match="pieces = 1000: cuts 24576 blocks in 24576000 pieces; use at most 813"):
        solve(problem(64, 128), "cross_ud_sub", pieces=1000)
