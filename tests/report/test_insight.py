"""What `analysis/causes.py` and `analysis/insight.py` compute, on Problems small enough to work out by hand."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from crosspipe.problem import BlockCost, Problem
from crosspipe.schedule import Block, Schedule, check, simulate
from crosspipe.solver import solve

ANALYSIS = Path(__file__).parents[2] / "analysis"
MIB = 2**20


@pytest.fixture
def causes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ANALYSIS)
    return importlib.import_module("causes")


@pytest.fixture
def insight(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ANALYSIS)
    return importlib.import_module("insight")


def two_stages(**changed: object) -> Problem:
    given = {"stages": 2, "microbatches": 2, "sites": 2, "forward_ms": 10, "input_grad_ms": 10, "weight_grad_ms": 10}
    return Problem.uniform(**(given | changed))


def one_f_one_b() -> Schedule:
    orders = ("F0 F1 B0 B1", "F0 B0 F1 B1")
    rows = tuple(tuple(Block(b[0], 0, int(b[1:])) for b in row.split()) for row in orders)
    return Schedule(name="1f1b", traversal="ud", stages=2, chunks=1, microbatches=2, orders=rows)


def test_the_largest_latency_is_where_the_time_has_grown_so_much(insight: ModuleType) -> None:
    """1F1B takes 90 ms without delay and 20 ms more for 10 ms of it (tests/report/conftest.py): 2 ms for each."""
    assert insight.largest_latency_ms(two_stages(), one_f_one_b(), 0.05) == pytest.approx(90 * 0.05 / 2, abs=0.01)
    late = two_stages(latency_ms=10)
    assert insight.largest_latency_ms(late, one_f_one_b(), 0.01) == pytest.approx(10 + 110 * 0.01 / 2, abs=0.01)
    assert insight.largest_latency_ms(two_stages(sites=1), one_f_one_b(), 0.05) is None


def test_what_helps_most_is_told_apart_from_a_larger_batch(
    insight: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One microbatch there and back has nothing to overlap with: F, link, F, D, link, D, W is all of it."""
    monkeypatch.setattr(insight, "SEARCH_S", 0.3)
    problem = two_stages(microbatches=1, latency_ms=40, memory_microbatches=2)
    cell = insight.Cell(
        case=1, delay="(4, 0)", name="zbh1", schedule=solve(problem, "zbh1"), problem=problem, problems={"ud": problem},
        static=(problem, solve(problem, "1f1b")), zbv_s=0.05,
    )  # fmt: skip
    assert cell.takes_s == pytest.approx(0.13)  # 50 ms of blocks, 80 ms of link
    changed = insight.changes(cell, lambda words: None)
    halved = next(row for row in changed if row["change"] == "half the latency across sites")
    assert halved["ms/microbatch"] == pytest.approx(90)
    assert halved["saved_percent"] == pytest.approx(100 * 40 / 130)
    row = insight.insight(cell, changed)
    assert row["helps most"] == "half the latency across sites"
    assert row["saves_percent"] == pytest.approx(100 * 40 / 130)
    # two overlap: F0, link, F0, D0, F1, D1 while D0 comes back; D0, D1, and the W of both
    assert row["2 × batch saves_percent"] > 30
    assert row["over ZB-V without delay"] == pytest.approx(2.6)
    assert row["latency for +5 %, ms"] == "43.2"  # 130 * 0.05 / 2 more


def test_a_batch_behind_another_is_valid_and_takes_no_longer(insight: ModuleType) -> None:
    problem = two_stages(memory_microbatches=2)
    doubled = msgspec.structs.replace(problem, microbatches=4)
    behind = insight.twice(one_f_one_b())
    assert check(doubled, behind) == []
    # alone each takes 90 ms; the second batch starts on stage 0 when that is free, 20 ms before stage 1 has begun it
    assert simulate(doubled, behind).makespan_ns <= 180_000_000


def test_more_memory_never_takes_longer(insight: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insight, "SEARCH_S", 0.2)
    monkeypatch.setattr(insight, "FRONT_MICROBATCHES", (4,))
    problem = two_stages(microbatches=4, latency_ms=30, memory_microbatches=8)
    cell = insight.Cell(
        case=1, delay="(3, 0)", name="zbh1", schedule=solve(problem, "zbh1"), problem=problem, problems={"ud": problem},
        static=(problem, solve(problem, "1f1b")), zbv_s=None,
    )  # fmt: skip
    monkeypatch.setattr(insight, "FRONT_MEMORY", (1, 2, 4))
    table = insight.fastest(list(insight.front(cell, lambda words: None)))
    times = table["ms/microbatch"].to_list()
    # one in flight: F, link, F, D, link, D, and the next F has room only after W
    assert times[0] == pytest.approx(10 + 30 + 20 + 30 + 20)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0] / 1.5
    assert table["saved_percent"].to_list()[0] == 0


def test_a_recomputed_microbatch_is_whole_with_what_d_takes(causes: ModuleType) -> None:
    cost = BlockCost(
        forward_ns=10, input_grad_ns=10, weight_grad_ns=10, forward_keep_bytes=100, input_grad_release_bytes=50,
        weight_grad_release_bytes=50,
    ).recomputed(7)  # fmt: skip
    problem = msgspec.structs.replace(two_stages(), costs=((cost,), (cost,)))
    assert causes.whole_bytes(problem) == 100
    assert causes.with_limit(problem, 300).activation_limit_bytes == (300, 300)


def best(causes: ModuleType, problem: Problem, name: str, **changed: object) -> object:
    schedule = solve(problem, name, time_limit_s=2)
    given = {"bound_s": schedule.certificate.lower_bound_ns / problem.microbatches / 1e9, "without_delay": None}
    return causes.Best(schedule=schedule, problem=problem, problems={"ud": problem}, **(given | changed))


def test_a_cell_near_the_published_value_needs_no_cause(causes: ModuleType) -> None:
    problem = two_stages()
    found = best(causes, problem, "zbh1", published_s=0.0349)  # 70 ms for two: 1.003
    assert causes.explain(found, 2) is None


def test_another_memory_unit_is_computed_at_the_cell(causes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed, W must follow D at once; with whole microbatches as the unit it may wait."""
    monkeypatch.setattr(causes, "SEARCH_S", 1.0)
    plain = two_stages(microbatches=4, latency_ms=40, memory_microbatches=4)
    costs = tuple((cost.recomputed(MIB // 64),) for (cost,) in plain.costs)
    limit = 2 * (MIB // 64) + MIB - MIB // 64  # two recomputed, and what one D takes
    problem = msgspec.structs.replace(plain, costs=costs, activation_limit_bytes=(limit, limit))
    found = best(causes, problem, "cross_ud", published_s=0.06)
    said = causes.explain(found, 2)
    # stage 1 begins at 50 ms, its last D ends 150 ms later, link, D and W follow: 270 ms, 67.5 ms a microbatch
    assert "above the published value: the paper's limit is another." in said
    assert f"read as 2 whole ones, {2 * MIB / 2**30:.1f} GiB as in case 1" in said
    whole = causes.with_limit(problem, 2 * MIB)
    expected = solve(whole, "cross_ud", time_limit_s=5).certificate.makespan_ns / 4e9
    assert f"cross_ud takes {expected:.4f} s, {expected / 0.06:.3f} of the published value" in said


def test_the_wire_that_would_give_the_published_value(causes: ModuleType) -> None:
    """Four messages of T each after F; the last gets F and D there, T back, D and W: 5 T + 50 ms where T is long."""
    problem = two_stages(microbatches=4, serialisation_ms=30)
    found = best(causes, problem, "cross_ud", published_s=(5 * 60 + 50) / 4e3)
    assert found.ours_s == pytest.approx(0.05)  # 5 * 30 + 50 ms
    assert causes.wire_for(found, found.published_s) == pytest.approx(6, rel=0.01)  # T = 60 ms, T_F = 10 ms
    said = causes.explain(found, 4)
    assert float(re.search(r"occupies the wire for at least ([\d.]+) T_F, not 3:", said)[1]) == pytest.approx(
        6, rel=0.01
    )
    assert causes.wire_for(found, 10.0) is None


def test_where_nothing_tells_the_cause_there_is_no_note(causes: ModuleType) -> None:
    """Latency alone: no wire to be slower, and no cell without delay to compare with."""
    problem = two_stages(latency_ms=5)
    assert causes.explain(best(causes, problem, "zbh1", published_s=1.0), 2) is None
