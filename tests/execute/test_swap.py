"""Plans swapped while training goes on: nothing of the training changes, and what cannot run is refused by all."""

from __future__ import annotations

import msgspec
import pytest
from inprocess_ranks import FORMAT, execute
from orders import schedule_of

from crosspipe.errors import ArtifactError
from crosspipe.execute.engine import Engine, Settings
from crosspipe.execute.lowering import lower
from crosspipe.execute.plan import Action, Plan
from crosspipe.execute.replicas import PlainStep
from crosspipe.execute.swap import Swapper, WatchedFile, peak_bytes
from crosspipe.model.optimizer import build_optimizer
from crosspipe.problem import Problem
from crosspipe.problem.problem import MICROBATCH_UNITS
from crosspipe.schedule import Block, simulate
from crosspipe.solver import solve
from crosspipe.store import save

REAL = Settings(paced=False, emulate=False)
TIMES = {"forward_ms": 2, "input_grad_ms": 2, "weight_grad_ms": 1}


def problem_of(*, limit: float | None = None, microbatches: int = 4) -> Problem:
    return Problem.uniform(stages=2, microbatches=microbatches, memory_microbatches=limit, **TIMES)


def plan_of(problem: Problem, name: str) -> Plan:
    return lower(problem, solve(problem, name), message_bytes=FORMAT.size_bytes)


def train(problem: Problem, first: Plan, offers: dict[int, Plan], iterations: int):
    """(losses, parameters, orders executed on rank 1 by iteration, outcomes by rank) of training with AdamW."""
    swappers = []

    def swaps(engine):
        swappers.append(Swapper(engine, first, offers.get))
        return swappers[-1].before

    traces, modules = execute(
        problem,
        first,
        REAL,
        iterations=iterations,
        step=lambda parameters: PlainStep(build_optimizer(parameters, learning_rate=1e-2)),
        before=swaps,
    )
    losses = [row[1].loss for row in traces]
    orders = [tuple(b.block for b in row[1].blocks) for row in traces]
    return losses, [p for k in sorted(modules) for p in modules[k].parameters()], orders, [s.swaps for s in swappers]


def test_a_training_run_of_200_iterations_is_the_same_with_three_swaps():
    problem = problem_of()
    plans = {name: plan_of(problem, name) for name in ("1f1b", "zbh1", "gpipe")}
    steady, before, _, _ = train(problem, plans["1f1b"], {}, 200)
    offers = {50: plans["zbh1"], 100: plans["gpipe"], 150: plans["1f1b"]}
    swapped, after, orders, outcomes = train(problem, plans["1f1b"], offers, 200)
    assert swapped == steady  # to the last bit
    assert all((a == b).all() for a, b in zip(after, before, strict=True))
    assert min(steady[100:]) < min(steady[:10])  # it did train
    executed = ["1f1b"] * 50 + ["zbh1"] * 50 + ["gpipe"] * 50 + ["1f1b"] * 50
    assert orders == [solve(problem, name).orders[1] for name in executed]
    assert outcomes[0] == outcomes[1]
    assert [(s.iteration, s.schedule_name, s.refused) for s in outcomes[0]] == [
        (50, "zbh1", None), (100, "gpipe", None), (150, "1f1b", None)
    ]  # fmt: skip


def test_what_does_not_fit_one_rank_is_refused_by_all_and_training_goes_on():
    problem = problem_of(limit=2)
    roomy = msgspec.structs.replace(problem, activation_limit_bytes=(None, None))
    running = plan_of(problem, "1f1b")
    # gpipe holds all 4 microbatches on both stages; 1f1b holds 2 on stage 0, 1 on stage 1
    assert [peak_bytes(problem, rank) for rank in running.ranks] == [2 * MICROBATCH_UNITS, MICROBATCH_UNITS]
    _, _, orders, outcomes = train(problem, running, {1: plan_of(roomy, "gpipe")}, 3)
    assert orders == [solve(problem, "1f1b").orders[1]] * 3
    assert outcomes[0] == outcomes[1]
    (refused,) = outcomes[0]
    assert refused.refused == (
        f"rank 0: its activations take {4 * MICROBATCH_UNITS} bytes on stage 0, the limit is {2 * MICROBATCH_UNITS}"
    )


def test_memory_that_one_rank_does_not_have_refuses_the_plan_for_all(monkeypatch):
    problem = problem_of()
    running, offered = plan_of(problem, "1f1b"), plan_of(problem, "gpipe")
    # three buffers more on each rank than the running plan's
    ranks = (msgspec.structs.replace(r, slot_bytes=r.slot_bytes + (FORMAT.size_bytes,) * 3) for r in offered.ranks)
    offered = msgspec.structs.replace(offered, ranks=tuple(ranks))
    reserve, engines = Engine.reserve, {}

    def full(engine, plan):
        engines[plan.rank] = engine
        if plan.rank == 1 and plan is not running.ranks[1]:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 bytes"
            )
        reserve(engine, plan)

    monkeypatch.setattr(Engine, "reserve", full)
    _, _, orders, outcomes = train(problem, running, {1: offered}, 3)
    assert orders == [solve(problem, "1f1b").orders[1]] * 3
    assert outcomes[0] == outcomes[1]
    (refused,) = outcomes[0]
    assert refused.refused == f"rank 1: there is no memory for its {len(offered.ranks[1].slot_bytes)} receive buffers"
    assert [len(engines[r]._slots) for r in (0, 1)] == [len(rank.slot_bytes) for rank in running.ranks]


def without_last(plan: Plan) -> Plan:
    """The plan whose rank 1 forgets its last W."""
    first, second = plan.ranks
    actions = [a for a in second.actions if a.block != Block("W", 0, 3)]
    return msgspec.structs.replace(plan, ranks=(first, msgspec.structs.replace(second, actions=tuple(actions))))


def waiting_first(plan: Plan) -> Plan:
    """The plan whose rank 0 waits for its first D before it does anything else."""
    first, second = plan.ranks
    post, wait = (next(a for a in first.actions if a.kind == kind) for kind in ("post", "wait"))
    rest = list(first.actions)
    rest.remove(post)
    rest.remove(wait)
    actions: tuple[Action, ...] = (post, wait, *rest)
    return msgspec.structs.replace(plan, ranks=(msgspec.structs.replace(first, actions=actions), second))


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (without_last(plan_of(problem_of(), "zbh1")), "lacks W3 of chunk 0"),
        (waiting_first(plan_of(problem_of(), "1f1b")), "rank 0 stops at 'wait for message D0"),
        (plan_of(problem_of(microbatches=5), "1f1b"), "it sends or receives what the running plan does not"),
        (lower(problem_of(), solve(problem_of(), "1f1b"), message_bytes=8), "its buffers are not of the messages'"),
    ],
)
def test_a_plan_that_could_not_run_here_is_refused_in_words(offer, reason):
    problem = problem_of()
    _, _, _, outcomes = train(problem, plan_of(problem, "1f1b"), {1: offer}, 2)
    assert outcomes[0] == outcomes[1]
    (refused,) = outcomes[0]
    assert reason in refused.refused


def test_a_watched_file_is_taken_when_it_changes_and_never_in_half(tmp_path):
    problem = problem_of()
    file = save(tmp_path / "next.json", plan_of(problem, "gpipe"))
    watched = WatchedFile(file, lambda schedule: lower(problem, schedule, message_bytes=FORMAT.size_bytes))
    assert watched(0) is None  # it lay there before
    schedule = schedule_of(problem, [[Block(kind, 0, mb) for kind in "FB" for mb in range(4)]] * 2)
    save(file, schedule)
    taken = watched(1)
    assert taken.schedule_name == "test"
    assert taken.predicted_makespan_ns == simulate(problem, schedule).makespan_ns
    assert watched(2) is None
    file.write_text('{"type": "plan", "ranks"')
    with pytest.raises(ArtifactError, match="is no plan and no schedule"):
        watched(3)
    assert watched(4) is None  # said once
    file.unlink()
    assert watched(5) is None
