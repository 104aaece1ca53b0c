"""Rounds against what a round-robin tournament must be, and a hand-worked plan for four ranks."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosspipe.profile.rounds import quiet_rounds, rounds


@given(st.integers(0, 40))
def test_every_pair_once_and_no_rank_twice_in_a_round(ranks: int) -> None:
    plan = rounds(ranks)
    assert sorted(pair for pairs in plan for pair in pairs) == list(combinations(range(ranks), 2))
    for pairs in plan:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(("ranks", "count", "pairs"), [(2, 1, 1), (3, 3, 1), (4, 3, 2), (5, 5, 2), (16, 15, 8)])
def test_number_of_rounds_and_their_size(ranks: int, count: int, pairs: int) -> None:
    plan = rounds(ranks)
    assert len(plan) == count
    assert {len(members) for members in plan} == {pairs}


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert rounds(1) == rounds(0) == ()


def test_a_machine_with_two_cores_measures_one_pair_at_a_time() -> None:
    plan = (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    one = [0] * 4
    assert quiet_rounds(plan, ["a"] * 4, {"a": 2}, one) == (((0, 1),), ((2, 3),), ((0, 2),), ((1, 3),))
    assert quiet_rounds(plan, ["a"] * 4, {"a": 4}, one) == plan
    assert quiet_rounds(plan, ["a"] * 4, {"a": 1}, one) == (((0, 1),), ((2, 3),), ((0, 2),), ((1, 3),))


def test_two_machines_are_only_cut_where_a_machine_is_full() -> None:
    plan = (((0, 2), (1, 3)), ((0, 1), (2, 3)))
    # one core a machine: pairs across occupy both machines; each inner pair fills its own machine alone
    machines, one = ["a", "a", "b", "b"], [0] * 4
    assert quiet_rounds(plan, machines, {"a": 1, "b": 1}, one) == (((0, 2),), ((1, 3),), ((0, 1),), ((2, 3),))
    assert quiet_rounds(plan, machines, {"a": 2, "b": 2}, one) == plan


def test_one_pair_at_a_time_crosses_between_two_sites() -> None:
    plan = (((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3)))
    alone = (((0, 3),), ((1, 2),), ((0, 2),), ((1, 3),), ((0, 1), (2, 3)))
    assert quiet_rounds(plan, list("abcd"), dict.fromkeys("abcd", 8), [0, 0, 1, 1]) == alone
    # three sites: 0-1 and 2-3 cross between other sites than each other
    assert quiet_rounds((((0, 1), (2, 3)),), list("abcd"), dict.fromkeys("abcd", 8), [0, 1, 1, 2]) == (
        ((0, 1), (2, 3)),
    )


@given(st.integers(2, 12), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
def test_cutting_loses_no_pair_and_fits_cores_and_wires(ranks: int, machines: int, cores: int, sites: int) -> None:
    machine_of_rank = [str(rank % machines) for rank in range(ranks)]
    plan = rounds(ranks)
    cut = quiet_rounds(
        plan, machine_of_rank, {str(m): cores for m in range(machines)}, [r % sites for r in range(ranks)]
    )
    assert sorted(pair for pairs in cut for pair in pairs) == sorted(pair for pairs in plan for pair in pairs)
    for pairs in cut:
        across = [{source % sites, target % sites} for source, target in pairs if source % sites != target % sites]
        assert all(across.count(both) == 1 for both in across)
        for machine in range(machines):
            here = [[machine_of_rank[rank] == str(machine) for rank in pair] for pair in pairs]
            assert sum(map(sum, here)) <= cores or sum(map(any, here)) == 1
