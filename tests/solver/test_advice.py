"""Advice about a Problem: neighbours that differ in one thing only, and tolerances worked out by hand."""

from __future__ import annotations

import pytest

from crosspipe.problem import Problem
from crosspipe.solver import advice

MS = 1_000_000


def problem(**changes: object) -> Problem:
    return Problem.uniform(
        **{
            "stages": 4, "microbatches": 4, "sites": 2, "forward_ms": 10, "input_grad_ms": 10, "weight_grad_ms": 10,
            "latency_ms": 5, "serialisation_ms": 3, "memory_microbatches": 4, **changes,
        }
    )  # fmt: skip


def test_a_pipeline_as_a_wave_is_what_uniform_makes_of_it_and_back() -> None:
    ud, wave = problem(), problem(traversal="wave")
    made = advice.with_traversal(ud, "wave")
    assert made is not None
    assert made.digest() == wave.digest()
    assert advice.with_traversal(wave, "ud").digest() == ud.digest()  # type: ignore[union-attr]
    assert advice.with_traversal(ud, "ud") is ud
    assert advice.with_traversal(ud, "loop") is None


def test_neighbours_differ_in_one_thing() -> None:
    base = problem()
    found = dict(advice.neighbours(base))
    assert list(found) == [
        "1.5 × the activation memory", "2 × the activation memory", "2 × the microbatches",
        "2 × the bandwidth across sites", "half the latency across sites", "the sites split 1 + 3 stages",
        "the sites split 3 + 1 stages",
    ]  # fmt: skip
    assert found["2 × the activation memory"].digest() == problem(memory_microbatches=8).digest()
    assert found["2 × the microbatches"].digest() == problem(microbatches=8).digest()
    assert found["2 × the bandwidth across sites"].digest() == problem(serialisation_ms=1.5).digest()
    assert found["half the latency across sites"].digest() == problem(latency_ms=2.5).digest()
    assert [hop.delay_ns // MS for hop in found["the sites split 1 + 3 stages"].forward_hops] == [8, 0, 0]
    assert [hop.delay_ns // MS for hop in found["the sites split 3 + 1 stages"].backward_hops] == [0, 0, 8]
    assert found["the sites split 3 + 1 stages"].sites == (0, 0, 0, 1)


def test_a_wave_is_cut_elsewhere_on_both_ways() -> None:
    moved = dict(advice.neighbours(problem(traversal="wave")))["the sites split 1 + 3 stages"]
    assert [hop.delay_ns // MS for hop in moved.forward_hops] == [8, 0, 0, 0, 0, 0, 8]
    assert [hop.wire for hop in moved.forward_hops] == ["0>1", None, None, None, None, None, "1>0"]


def test_one_site_without_limits_has_little_to_change() -> None:
    alone = problem(sites=1, memory_microbatches=None)
    assert [words for words, _ in advice.neighbours(alone)] == ["2 × the microbatches"]


def test_latency_tolerance_of_a_worked_example() -> None:
    """1F1B of two stages and two microbatches, 10 ms a block, 10 ms of latency: 110 ms, of which the latency counts
    twice (F0 there, B1 back) as long as it is no longer than that; 10 % of 110 ms are 11 ms, so 5.5 ms more."""
    pair = problem(stages=2, microbatches=2, latency_ms=10, serialisation_ms=0, memory_microbatches=2)
    choice = advice.judge(pair, "1f1b", time_limit_s=1)
    assert (choice.makespan_ns, choice.crossings) == (110 * MS, 2)
    assert advice.tolerance_ns(choice, 0.1) == pytest.approx(5.5 * MS, rel=1e-3)
    assert advice.tolerance_ns(advice.judge(problem(sites=1), "1f1b", time_limit_s=1), 0.1) is None


def test_what_does_not_fit_says_why_and_stands_last() -> None:
    found = advice.choices({"ud": problem(microbatches=8)}, time_limit_s=0.3, workers=1, say=lambda _: None)
    assert {c.name for c in found[-2:]} == {"gpipe", "zbh2"}  # they need 8 and 7 microbatches, 4 fit
    assert all(c.schedule is None and "stage 0" in c.refused for c in found[-2:])
    times = [c.makespan_ns for c in found if c.schedule is not None]
    assert times == sorted(times)


def test_more_memory_helps_where_memory_binds() -> None:
    """With one microbatch in memory at a time nothing overlaps; with two, the second fills what the first waits."""
    tight = problem(stages=2, latency_ms=40, serialisation_ms=0, memory_microbatches=1)
    best = advice.judge(tight, "cross_ud", time_limit_s=1, workers=1)
    tried = {c.words: c.choice for c in advice.changes(best, time_limit_s=0.5, workers=1, say=lambda _: None)}
    doubled = tried["2 × the activation memory"]
    assert doubled is not None
    # by hand, one at a time: F0 10, 40, F 10, D 10, 40, D 10 on stage 0, then W 10: 130 ms each but the last W
    assert best.makespan_ns >= 4 * 120 * MS
    assert doubled.makespan_ns < 0.7 * best.makespan_ns
