"""`solve`: names, errors, what every schedule carries."""

from __future__ import annotations

import os

import pytest

from crosspipe.errors import FieldError, Infeasible, UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule, simulate_reference
from crosspipe.solver import SCHEDULES, Bound, solve
from crosspipe.solver.certify import Found, certified
from crosspipe.solver.request import Request


def small(**changes: object) -> Problem:
    return Problem.uniform(
        **{
            "traversal": "ud",
            "stages": 2,
            "microbatches": 3,
            "forward_ms": 3,
            "input_grad_ms": 3,
            "weight_grad_ms": 2,
            **changes,
        }
    )


def test_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(UsageError) as error:
        solve(small(), "crossud")
    assert error.value.exit_code == 2
    assert "did you mean cross_ud? " in str(error.value)
    for name in SCHEDULES:
        assert name in str(error.value)


@pytest.mark.parametrize(("name", "traversal"), [("1f1b", "wave"), ("zbh1", "loop"), ("interleaved_1f1b", "ud")])
def test_wrong_traversal_names_the_right_one(name: str, traversal: str) -> None:
    right = SCHEDULES[name].traversal
    with pytest.raises(UsageError, match=f"make the problem with traversal {right}"):
        solve(small(traversal=traversal), name)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("time_limit_s", 0),
        ("time_limit_s", float("nan")),
        ("workers", 0),
        ("workers", 1025),
        ("seed", -1),
        ("seed", 2**31),
        ("pieces", 0),
    ],
)
def test_senseless_options_are_usage_errors(option: str, value: float) -> None:
    with pytest.raises(UsageError, match=option):
        solve(small(), "1f1b", **{option: value})


def test_hint_of_another_shape_is_refused() -> None:
    with pytest.raises(FieldError, match="use microbatches 4"):
        solve(small(microbatches=4), "1f1b", hint=solve(small(), "1f1b"))


def test_a_hint_is_never_lost() -> None:
    """Without time to search, a hint is what there is: 39 ms, against 40 ms of the best of the cheap methods."""
    problem = small(
        microbatches=4,
        sites=2,
        forward_ms=2,
        input_grad_ms=1,
        weight_grad_ms=4,
        latency_ms=3,
        serialisation_ms=2,
        memory_microbatches=3,
    )
    best = solve(problem, "cross_ud", time_limit_s=10)
    without, again = (solve(problem, "auto", time_limit_s=1e-6, hint=hint) for hint in (None, [best]))
    assert without.certificate.makespan_ns == 40_000_000
    assert again.certificate.makespan_ns == best.certificate.makespan_ns == 39_000_000


def test_memory_below_one_microbatch_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="one microbatch needs"):
        solve(small(memory_microbatches=0.5), "1f1b")


def test_a_schedule_carries_digest_certificate_and_provenance() -> None:
    problem = small()
    schedule = solve(problem, "1f1b", seed=7)
    assert isinstance(schedule, Schedule)
    assert schedule.problem_digest == problem.digest()
    # (n + p - 1)(F + B) = 4 * 8; the bound: a stage works 3 * 8, the last one starts after F and waits for no one
    assert schedule.certificate.makespan_ns == 32_000_000 == simulate_reference(problem, schedule).makespan_ns
    assert 27_000_000 <= schedule.certificate.lower_bound_ns <= 32_000_000
    provenance = schedule.provenance
    assert (provenance.method, provenance.seed) == ("1f1b", 7)
    assert provenance.workers == len(os.sched_getaffinity(0))
    assert {"python", "ortools", "numba"} <= provenance.versions.keys()
    assert provenance.wall_s > 0


def test_a_bound_above_the_makespan_is_dropped_and_said() -> None:
    problem = small()
    lie = Bound(value_ns=40_000_000, proven_by="a liar", explanation="trust me")
    truth = Bound(value_ns=24_000_000, proven_by="stage work", explanation="stage 0 works 24 ms")
    found = Found(orders=solve(problem, "1f1b").orders, proofs=(lie,))
    request = Request(bound=truth, started_s=0.0, time_limit_s=1.0, workers=1, seed=0, pieces=1)
    certificate = certified(problem, "1f1b", found, request).certificate
    assert (certificate.lower_bound_ns, certificate.proven_by) == (24_000_000, "stage work")
    assert "a liar claims 40000000 ns, above the re-timed 32000000 ns" in certificate.explanation
