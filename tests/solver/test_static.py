"""The fixed orders are PyTorch's own, and re-time to the makespans known for them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from crosspipe.errors import FieldError, Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule, simulate_reference
from crosspipe.solver import SCHEDULES, solve

REFERENCE = Path(__file__).parents[1] / "reference"
TRAVERSAL = {"interleaved_1f1b": "loop"}


def uniform(name: str, stages: int = 4, microbatches: int = 8, **changes: object) -> Problem:
    return Problem.uniform(
        **{
            "traversal": TRAVERSAL.get(name, "ud"),
            "stages": stages,
            "microbatches": microbatches,
            "forward_ms": 200,
            "input_grad_ms": 200,
            "weight_grad_ms": 200,
            **changes,
        }
    )


def as_pytorch_cells(problem: Problem, schedule: Schedule) -> list[list[str]]:
    return [
        [f"{problem.position(stage, b.chunk)}{b.kind.replace('D', 'I')}{b.microbatch}" for b in order]
        for stage, order in enumerate(schedule.orders)
    ]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("gpipe", "GPipe_exec_pp4_mb8"),
        ("1f1b", "1F1B_exec_pp4_mb8"),
        ("zbh1", "InterleavedZeroBubble_c1_pp4_mb8"),
        ("interleaved_1f1b", "Interleaved1F1B_c2_pp4_mb8"),
    ],
)
def test_orders_are_those_of_pytorch(name: str, file: str) -> None:
    with (REFERENCE / "orders" / f"{file}.csv").open() as lines:
        expected = [[cell for cell in row if cell and "REDUCE" not in cell] for row in csv.reader(lines)]
    problem = uniform(name)
    assert as_pytorch_cells(problem, solve(problem, name)) == expected


@pytest.mark.parametrize(
    ("name", "expected_ms"),
    [
        ("1f1b", [6600, 7400, 8200, 9800]),
        ("zbh1", [5400, 5800, 6600, 8200]),
        ("interleaved_1f1b", [5700, 6300, 7000, 9400]),
    ],
)
def test_reference_makespans_with_latency_across_two_sites(name: str, expected_ms: list[int]) -> None:
    for latency_ms, makespan_ms in zip((0, 100, 200, 400), expected_ms, strict=True):
        schedule = solve(uniform(name, sites=2, latency_ms=latency_ms), name)
        assert schedule.certificate.makespan_ns == makespan_ms * 1_000_000


@pytest.mark.parametrize("release_input_grad", [0.0, 0.5, 1.0])
def test_zbh1_holds_at_most_one_microbatch_per_stage_of_the_pipeline(release_input_grad: float) -> None:
    problem = uniform("zbh1", release_input_grad=release_input_grad)
    peak = simulate_reference(problem, solve(problem, "zbh1")).peak_memory_bytes()
    assert max(peak) == 4 * 2**20


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (4, 1), (4, 3), (5, 7), (8, 32)])
def test_closed_formulas_without_delay(stages: int, microbatches: int) -> None:
    """GPipe and 1F1B: (n + p - 1)(F + B) (Narayanan et al. 2021); ZB-H1, W <= F: n(F+D+W) + (p-1)(F+D-W), n >= p."""
    times = {"forward_ms": 38, "input_grad_ms": 46, "weight_grad_ms": 21}
    fused = (microbatches + stages - 1) * 105 * 1_000_000
    for name in ("gpipe", "1f1b"):
        assert solve(uniform(name, stages, microbatches, **times), name).certificate.makespan_ns == fused
    if microbatches >= stages:
        split = (microbatches * 105 + (stages - 1) * 63) * 1_000_000
        assert solve(uniform("zbh1", stages, microbatches, **times), "zbh1").certificate.makespan_ns == split


@pytest.mark.parametrize("name", [name for name, entry in SCHEDULES.items() if entry.family == "static"])
def test_every_block_once_for_any_allowed_count(name: str) -> None:
    refused = []
    for stages in (1, 2, 3, 5):
        for microbatches in (1, 2, 3, 6, 10):
            problem = uniform(name, stages, microbatches)
            try:
                schedule = solve(problem, name)
            except FieldError:
                refused.append((stages, microbatches))
                continue
            kinds = "FDW" if name == "zbh1" else "FB"
            expected = sorted((k, c, m) for k in kinds for c in range(problem.chunks) for m in range(microbatches))
            for order in schedule.orders:
                assert sorted((b.kind, b.chunk, b.microbatch) for b in order) == expected
    assert refused == ([(3, 10)] if name == "interleaved_1f1b" else [])  # 3 rounds of 3 do not hold 10


def test_interleaved_says_which_counts_it_allows() -> None:
    with pytest.raises(FieldError, match="use 8 or 10"):
        solve(uniform("interleaved_1f1b", 4, 9), "interleaved_1f1b")


def test_memory_is_refused_with_stage_need_and_limit() -> None:
    with pytest.raises(Infeasible, match=rf"1f1b: stage 0 needs {4 * 2**20} bytes .* limit is {3 * 2**20} "):
        solve(uniform("1f1b", memory_microbatches=3), "1f1b")
