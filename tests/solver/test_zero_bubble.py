"""The generated families: no longer than what their authors' generators make, at the same memory; valid at any size."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from crosspipe.errors import Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import check, simulate_reference
from crosspipe.solver import SCHEDULES, solve
from crosspipe.solver.building_blocks import PERIOD, skeleton, v_half_block, v_min_block

REFERENCE = Path(__file__).parents[1] / "reference"
GENERATED = [name for name, entry in SCHEDULES.items() if entry.family == "generated"]


def authors() -> list[dict[str, str]]:
    with (REFERENCE / "zero_bubble_makespans_p4n8.csv").open() as lines:
        return list(csv.DictReader(lines))


def uniform(name: str, stages: int, microbatches: int, **changes: float) -> Problem:
    times = {"forward_ms": 38, "input_grad_ms": 46, "weight_grad_ms": 21, **changes}
    return Problem.uniform(
        traversal=SCHEDULES[name].traversal, stages=stages, microbatches=microbatches, sites=stages, **times
    )


@pytest.mark.parametrize("row", authors(), ids=lambda row: "-".join(list(row.values())[:5]))
def test_no_longer_than_the_authors_generators_at_the_same_memory(row: dict[str, str]) -> None:
    problem = uniform(
        row["schedule"],
        4,
        8,
        forward_ms=float(row["forward"]),
        input_grad_ms=float(row["input_grad"]),
        weight_grad_ms=float(row["weight_grad"]),
        latency_ms=float(row["boundary_latency"]),
        memory_microbatches=float(row["peak_microbatches"]),
    )
    schedule = solve(problem, row["schedule"])
    assert schedule.certificate.makespan_ns <= float(row["makespan"]) * 1_000_000


def test_order_of_f_and_d_in_zbv_is_that_of_pytorch() -> None:
    """PyTorch ships ZB-V's order for F = D = W; F and D keep it, whatever the times."""
    problem = uniform("zbv", 4, 8)
    schedule = solve(problem, "zbv")
    with (REFERENCE / "orders" / "ZBVZeroBubble_c2_pp4_mb8.csv").open() as lines:
        expected = [[cell for cell in row if re.search("[FI]", cell)] for row in csv.reader(lines)]
    got = [
        [f"{problem.position(stage, b.chunk)}{b.kind.replace('D', 'I')}{b.microbatch}" for b in order if b.kind in "FD"]
        for stage, order in enumerate(schedule.orders)
    ]
    assert got == expected


@pytest.mark.parametrize("stages", [4, 8])
def test_zbv_has_no_bubble_where_f_d_and_w_are_equal(stages: int) -> None:
    """n(F+D+W) and what the last stage must wait for its first F: p - 1 passes of half an F."""
    problem = uniform("zbv", stages, 3 * stages, forward_ms=2, input_grad_ms=2, weight_grad_ms=2)
    expected = 3 * stages * 6 + (stages - 1)
    assert solve(problem, "zbv").certificate.makespan_ns == expected * 1_000_000


@pytest.mark.parametrize("name", GENERATED)
def test_valid_at_any_size(name: str) -> None:
    for stages in (1, 2, 3, 6, 9):
        for microbatches in (1, 2, 5, 8, 19):
            problem = uniform(name, stages, microbatches)
            assert check(problem, solve(problem, name)) == []


@pytest.mark.parametrize("block", [v_half_block, v_min_block])
@pytest.mark.parametrize("stages", range(1, 20))
def test_building_blocks_never_use_a_slot_twice(block: object, stages: int) -> None:
    for row in block(stages):
        assert len({slot % PERIOD for slot in row}) == 4


@pytest.mark.parametrize("stages", range(2, 20))
def test_memory_of_building_blocks(stages: int) -> None:
    """In chunks, of which 1F1B and ZB-V hold 2p: a half and a third of it, and at most one microbatch beside."""
    assert skeleton(v_half_block(stages), 3 * stages).peak_chunks <= stages + 2
    assert skeleton(v_min_block(stages), 3 * stages).peak_chunks <= 2 * stages / 3 + 3


def test_memory_is_refused_with_stage_need_and_limit() -> None:
    with pytest.raises(Infeasible, match=r"v_half: stage 0 needs .* its limit is"):
        solve(uniform("v_half", 4, 8, memory_microbatches=2), "v_half")


def test_weight_grads_move_forward_where_the_limit_is_tighter_than_the_family() -> None:
    """ZB-H2's limit is 2p microbatches; at 7 instead of 8 its W make room in time."""
    problem = uniform("zbh2", 4, 8, memory_microbatches=7)
    peak = simulate_reference(problem, solve(problem, "zbh2")).peak_memory_bytes()
    assert max(peak) == 7 * 2**20
