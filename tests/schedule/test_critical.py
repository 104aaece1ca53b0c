"""Critical paths worked out by hand, and the property that makes them useful: crossings are the makespan's slope."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import RUNNABLE_CASES

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem
from crosspipe.schedule import Block, Message, Schedule, TimedBlock, TimedMessage, Timeline, simulate
from crosspipe.schedule.formats import read
from crosspipe.schedule.timeline import PathStep

replace = msgspec.structs.replace


def problem(stages: int, microbatches: int, hop: Hop, **changes) -> Problem:
    """F = 1, D = 2, W = 7 ns, one stage a site."""
    cost = BlockCost(
        forward_ns=1,
        input_grad_ns=2,
        weight_grad_ns=7,
        forward_keep_bytes=0,
        input_grad_release_bytes=0,
        weight_grad_release_bytes=0,
    )
    arguments = {
        "traversal": "ud",
        "stages": stages,
        "microbatches": microbatches,
        "costs": ((cost,),) * stages,
        "forward_hops": (hop,) * (stages - 1),
        "backward_hops": (hop,) * (stages - 1),
        "activation_limit_bytes": (None,) * stages,
        "sites": tuple(range(stages)),
        **changes,
    }
    return Problem(**arguments)


def schedule(of: Problem, *rows: str) -> Schedule:
    orders = tuple(tuple(Block(word[0], 0, int(word[1:])) for word in row.split()) for row in rows)
    return Schedule(traversal="ud", stages=of.stages, chunks=1, microbatches=of.microbatches, orders=orders)


def test_there_and_back():
    line = problem(2, 1, Hop(latency_ns=5, serialisation_ns=2))
    timeline = simulate(line, schedule(line, "F0 D0 W0", "F0 D0 W0"))
    assert timeline.critical_path() == (
        PathStep("block", "F0 of chunk 0 on stage 0", 0, 0, 1),
        PathStep("message", "message F0 from position 0", 0, 1, 8, True),
        PathStep("block", "F0 of chunk 0 on stage 1", 1, 8, 9),
        PathStep("block", "D0 of chunk 0 on stage 1", 1, 9, 11),
        PathStep("message", "message D0 from position 1", 1, 11, 18, True),
        PathStep("block", "D0 of chunk 0 on stage 0", 0, 18, 20),
        PathStep("block", "W0 of chunk 0 on stage 0", 0, 20, 27),
    )


def test_a_queue_leads_through_the_messages_in_front():
    line = problem(2, 3, Hop(latency_ns=5, serialisation_ns=4, wire="w"))
    timeline = simulate(line, schedule(line, "F0 F1 F2", "F0 F1 F2"))
    # the wire serves F0 1-5, F1 5-9, F2 9-13
    assert timeline.critical_path() == (
        PathStep("block", "F0 of chunk 0 on stage 0", 0, 0, 1),
        PathStep("message", "message F0 from position 0 occupies wire w", 0, 1, 5),
        PathStep("message", "message F1 from position 0 occupies wire w", 0, 5, 9),
        PathStep("message", "message F2 from position 0", 0, 9, 18, True),
        PathStep("block", "F2 of chunk 0 on stage 1", 1, 18, 19),
    )


def test_gather_and_reduce_are_on_the_path():
    replica = DataParallel(gather=Hop(latency_ns=5), reduce=Hop(latency_ns=1))
    alone = problem(1, 1, Hop(), data_parallel=((replica,),))
    timeline = simulate(alone, schedule(alone, "F0 D0 W0"))
    assert [(s.label, s.start_ns, s.end_ns) for s in timeline.critical_path()] == [
        ("gather of position 0", 0, 5),
        ("F0 of chunk 0 on stage 0", 5, 6),
        ("D0 of chunk 0 on stage 0", 6, 8),
        ("W0 of chunk 0 on stage 0", 8, 15),
        ("reduce of position 0", 15, 16),
    ]


def test_measured_gaps_are_waits():
    f0, f1 = Block("F", 0, 0), Block("F", 0, 1)
    timeline = Timeline(
        traversal="ud",
        stages=2,
        chunks=1,
        microbatches=2,
        sites=(0, 1),
        blocks=(
            (TimedBlock(f0, 100, 110), TimedBlock(f1, 112, 120)),
            (TimedBlock(f0, 130, 140), TimedBlock(f1, 155, 160)),
        ),
        messages=(
            TimedMessage(Message("F", 0, 0), "0>1", 110, 110, 115, 125),
            TimedMessage(Message("F", 0, 1), "0>1", 121, 121, 130, 150),
        ),
        origin="real link",
    )
    assert timeline.critical_path() == (
        PathStep("block", "F0 of chunk 0 on stage 0", 0, 100, 110),
        PathStep("wait", "stage 0 waits before F1 of chunk 0", 0, 110, 112),
        PathStep("block", "F1 of chunk 0 on stage 0", 0, 112, 120),
        PathStep("wait", "stage 0 waits before message F1 from position 0", 0, 120, 121),
        PathStep("message", "message F1 from position 0", 0, 121, 150, True),
        PathStep("wait", "stage 1 waits before F1 of chunk 0", 1, 150, 155),
        PathStep("block", "F1 of chunk 0 on stage 1", 1, 155, 160),
    )


def test_unrecorded_messages_are_waits_too():
    f0 = Block("F", 0, 0)
    rows = ((TimedBlock(f0, 5, 10),), (TimedBlock(f0, 30, 40),))
    timeline = Timeline(traversal="ud", stages=2, chunks=1, microbatches=1, sites=(0, 1), blocks=rows)
    assert [(s.kind, s.start_ns, s.end_ns) for s in timeline.critical_path()] == [
        ("block", 5, 10),
        ("wait", 10, 30),
        ("block", 30, 40),
    ]


def test_nothing_happened():
    assert Timeline(traversal="ud", stages=1, chunks=1, microbatches=1, sites=(0,), blocks=((),)).critical_path() == ()


@pytest.mark.parametrize(("microbatches", "crossings"), [(4, 4), (8, 8), (16, 16)])
def test_1f1b_pays_the_delay_for_every_microbatch(microbatches, crossings):
    """1F1B over two sites of two stages: the path crosses twice for every two microbatches (bubble strides).

    At 8 microbatches this is the slope of the reference makespans, 7400 at 100 ms and 8200 at 200 ms.
    """
    line = Problem.uniform(
        stages=4,
        microbatches=microbatches,
        sites=2,
        forward_ms=200,
        input_grad_ms=200,
        weight_grad_ms=200,
        latency_ms=100,
    )
    rows = []
    for stage in range(4):
        ahead = 4 - stage
        row = [f"F{mb}" for mb in range(ahead)]
        for mb in range(microbatches):
            row += [f"B{mb}"] + ([f"F{mb + ahead}"] if mb + ahead < microbatches else [])
        rows.append(" ".join(row))
    path = simulate(line, schedule(line, *rows)).critical_path()
    assert sum(step.crosses_sites for step in path) == crossings


SOME = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def latencies_raised(of: Problem, amount: int) -> Problem:
    def raised(hops: tuple[Hop, ...], kind: str, offset: int) -> tuple[Hop, ...]:
        return tuple(
            replace(hop, latency_ns=hop.latency_ns + amount) if of.crosses_sites(kind, k + offset) else hop
            for k, hop in enumerate(hops)
        )

    return replace(of, forward_hops=raised(of.forward_hops, "F", 0), backward_hops=raised(of.backward_hops, "D", 1))


@SOME
@given(data=st.data())
def test_path_is_gapless_and_its_crossings_are_the_slope_of_the_makespan(data):
    original, order = data.draw(RUNNABLE_CASES)
    timeline = simulate(original, order)
    path = timeline.critical_path()
    assert path[0].start_ns == timeline.start_ns
    assert path[-1].end_ns == timeline.end_ns
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(path))
    assert all(step.kind != "wait" for step in path)

    # no shared wires and times far above 1 ns: one more ns of latency then costs one ns a crossing
    def unshared(hops):
        return tuple(Hop(latency_ns=1000 * h.latency_ns, serialisation_ns=1000 * h.serialisation_ns) for h in hops)

    costs = tuple(tuple(cost.scaled(1000) for cost in row) for row in original.costs)
    plain = replace(
        original,
        costs=costs,
        forward_hops=unshared(original.forward_hops),
        backward_hops=unshared(original.backward_hops),
        data_parallel=(),
    )
    before, after = simulate(plain, order), simulate(latencies_raised(plain, 1), order)
    crossings = sum(step.crosses_sites for step in before.critical_path())
    assert after.makespan_ns - before.makespan_ns == crossings


@SOME
@given(seed=st.integers(0, 2**32), data=st.data())
def test_any_measured_times_give_a_gapless_path(seed, data):
    """Clocks may disagree by anything: the path still fills the whole time, once."""
    original, order = data.draw(RUNNABLE_CASES)
    rng = random.Random(seed)
    timeline = simulate(original, order)
    blocks = tuple(
        tuple(TimedBlock(b.block, b.start_ns + shift, b.end_ns + shift) for b in row)
        for row in timeline.blocks
        for shift in [rng.randint(0, 9)]
    )
    messages = tuple(m for m in timeline.messages if rng.random() < 0.8)
    measured = replace(timeline, blocks=blocks, messages=messages)
    path = measured.critical_path()
    assert (path[0].start_ns, path[-1].end_ns) == (measured.start_ns, measured.end_ns)
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(path))


@pytest.mark.parametrize(("latency", "crossings"), [(50, 4), (150, 8), (300, 8)])
def test_crossings_of_zbh1_are_the_slopes_of_its_reference_makespans(latency, crossings):
    """tests/reference/README.md: 5400 / 5800 / 6600 / 8200 at 0 / 100 / 200 / 400, so slopes of 4, 8 and 8."""
    order = read(Path(__file__).parents[1] / "reference" / "orders" / "InterleavedZeroBubble_c1_pp4_mb8.csv")
    times = {"forward_ms": 200, "input_grad_ms": 200, "weight_grad_ms": 200}
    line = Problem.uniform(stages=4, microbatches=8, sites=2, latency_ms=latency, **times)
    assert sum(step.crosses_sites for step in simulate(line, order).critical_path()) == crossings
