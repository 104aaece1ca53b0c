"""On random problems of every kind: candidates are valid, search is no worse, nothing is below the bound."""

from __future__ import annotations

from hypothesis import given, settings
from random_problems import problems

from crosspipe.problem import Problem
from crosspipe.schedule import check, simulate_reference
from crosspipe.solver.bounds import lower_bound
from crosspipe.solver.certify import schedule_of
from crosspipe.solver.pool import candidates
from crosspipe.solver.search import policy_search


@settings(max_examples=600, deadline=None)
@given(problem=problems(stages=(1, 5), microbatches=(1, 8), pieces=(1, 1, 3)))
def test_candidates_are_valid_timed_and_not_below_the_bound(problem: Problem) -> None:
    bound = lower_bound(problem).value_ns
    for candidate in candidates(problem, ()):
        schedule = schedule_of(problem, candidate.name, candidate.found)
        assert check(problem, schedule) == []
        assert simulate_reference(problem, schedule).makespan_ns == candidate.makespan_ns
        assert bound <= candidate.makespan_ns


@settings(max_examples=600, deadline=None)
@given(problem=problems(stages=(1, 5), microbatches=(1, 8)))
def test_search_is_valid_no_worse_than_any_static_and_not_below_the_bound(problem: Problem) -> None:
    known = [schedule_of(problem, c.name, c.found) for c in candidates(problem, ())]
    found = policy_search(problem, evaluations=40, start=known)
    assert check(problem, found) == []
    makespan = simulate_reference(problem, found).makespan_ns
    assert lower_bound(problem).value_ns <= makespan
    assert makespan <= min(simulate_reference(problem, schedule).makespan_ns for schedule in known)


@settings(max_examples=100, deadline=None)
@given(problem=problems(stages=(1, 5), microbatches=(1, 8)))
def test_search_alone_fits_any_memory(problem: Problem) -> None:
    found = policy_search(problem, evaluations=40)
    assert check(problem, found) == []
    assert simulate_reference(problem, found).makespan_ns >= lower_bound(problem).value_ns
