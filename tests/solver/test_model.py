"""The CP-SAT model against the performance model: any known schedule is a complete, feasible hint for it."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from ortools.sat.python import cp_model
from random_problems import problems

from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, check, simulate
from crosspipe.solver.assignment import hint, read
from crosspipe.solver.certify import schedule_of
from crosspipe.solver.inorder import in_order, joined
from crosspipe.solver.model import build
from crosspipe.solver.pool import candidates


@settings(max_examples=60, deadline=None)
@given(problem=problems(stages=(1, 3), microbatches=(1, 4), most_chunks=2, pieces=(1, 2)), data=st.data())
def test_a_hint_is_complete_feasible_and_read_back(problem: Problem, data: st.DataObject) -> None:
    """Fixed to the hint, the model gives the simulated makespan, and the very schedule that was put in."""
    found = data.draw(st.sampled_from(list(candidates(problem, ())))).found
    normal = in_order(problem, schedule_of(problem, "known", found))
    timeline = simulate(problem, normal)
    model = build(problem, 0, timeline.makespan_ns, as_ready=True)
    hint(model, timeline)
    assert sorted(model.cp.proto.solution_hint.vars) == list(range(len(model.cp.proto.variables)))
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    solver.parameters.num_workers = 1
    assert solver.solve(model.cp) == cp_model.OPTIMAL
    assert solver.objective_value == timeline.makespan_ns
    orders, _ = read(model, solver.response_proto.solution)
    assert orders == tuple(joined(order) for order in normal.orders)


@settings(max_examples=100, deadline=None)
@given(
    problem=problems(traversals=("ud", "wave"), microbatches=(1, 4), wires=("own",), data_parallel=False),
    data=st.data(),
)
def test_normal_form_is_valid_and_no_longer(problem: Problem, data: st.DataObject) -> None:
    """From microbatches in any order: valid, in order, and no longer, as microbatches are identical.

    Where several stages send on a wire that nobody has listed, other names may change who goes first.
    """
    found = data.draw(st.sampled_from(list(candidates(problem, ())))).found
    names = data.draw(st.permutations(range(problem.microbatches)))
    renamed = tuple(tuple(b._replace(microbatch=names[b.microbatch]) for b in order) for order in found.orders)
    shuffled = Schedule(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        orders=renamed,
    )
    normal = in_order(problem, shuffled)
    assert check(problem, normal) == []
    assert simulate(problem, normal).makespan_ns <= simulate(problem, shuffled).makespan_ns
    for order in normal.orders:
        for kinds in ("F", "DB"):
            for chunk in range(problem.chunks):
                ran = [b.microbatch for b in order if b.kind in kinds and b.chunk == chunk]
                assert ran == sorted(ran)


def test_pieces_that_follow_one_another_are_joined() -> None:
    first, second = Block("W", 0, 0, 0, 2), Block("W", 0, 0, 1, 2)
    other = Block("W", 0, 1, 0, 2)
    assert joined((first, second, other)) == (Block("W", 0, 0), other)
    assert joined((first, other, second)) == (first, other, second)


def test_other_pieces_have_no_normal_form() -> None:
    problem = Problem.uniform(
        traversal="ud",
        stages=1,
        microbatches=1,
        forward_ms=1,
        input_grad_ms=1,
        weight_grad_ms=1,
        weight_grad_pieces=4,
    )
    cut = (Block("F", 0, 0), Block("D", 0, 0), Block("W", 0, 0, 0, 2), Block("W", 0, 0, 1, 2))
    assert in_order(problem, Schedule(traversal="ud", stages=1, chunks=1, microbatches=1, orders=(cut,))) is None
