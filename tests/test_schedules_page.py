"""docs/schedules.md against the code: every schedule has its row, and the numbers at a glance are what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosspipe.problem import Problem
from crosspipe.schedule import simulate
from crosspipe.solver import SCHEDULES, solve
from crosspipe.solver.static import FIXED_ORDERS
from crosspipe.solver.zero_bubble import GENERATED_ORDERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "schedules.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
STATIC = [name for name, entry in SCHEDULES.items() if entry.family in ("static", "generated")]


def test_every_schedule_has_its_row_and_its_config() -> None:
    assert set(FIXED_ORDERS) | set(GENERATED_ORDERS) == set(STATIC)
    described = {row[0].strip("`"): row[1] for row in ROWS if len(row) == 6}
    assert described == {name: entry.traversal or "any" for name, entry in SCHEDULES.items()}
    assert {path.stem for path in (ROOT / "conf" / "schedule").glob("*.yaml")} == set(SCHEDULES)


@pytest.mark.parametrize("name", STATIC)
def test_numbers_at_a_glance(name: str) -> None:
    rows = [row for row in ROWS if row[0] == f"`{name}`" and len(row) == 4]
    assert len(rows) == 1, f"docs/schedules.md needs a row of numbers for {name}: no limit, latency 0 and 19 ms, peak"
    (row,) = rows
    for latency_ms, stated in ((0, row[1]), (19, row[2])):
        problem = Problem.uniform(
            traversal=SCHEDULES[name].traversal,
            stages=8,
            microbatches=16,
            sites=2,
            forward_ms=38,
            input_grad_ms=46,
            weight_grad_ms=21,
            latency_ms=latency_ms,
        )
        timeline = simulate(problem, solve(problem, name))
        assert float(stated) == pytest.approx(timeline.makespan_ns / 1e6, abs=0.051)
        assert float(row[3]) == max(timeline.peak_memory_bytes()) / 2**20
