"""The Problem and its parts: formulas by hand, and one line of error for what cannot be a problem."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosspipe.errors import FieldError, Infeasible
from crosspipe.problem import BlockCost, DataParallel, Hop, Link, LinkTable, Problem
from crosspipe.problem.costs import split
from crosspipe.problem.traversal import place_of, position_of

replace = msgspec.structs.replace


def uniform(**changes) -> Problem:
    arguments = {
        "stages": 4,
        "microbatches": 8,
        "forward_ms": 38,
        "input_grad_ms": 46,
        "weight_grad_ms": 21,
        **changes,
    }
    return Problem.uniform(**arguments)


def cost(**changes) -> BlockCost:
    arguments = {
        "forward_ns": 10,
        "input_grad_ns": 20,
        "weight_grad_ns": 7,
        "forward_keep_bytes": 100,
        "input_grad_release_bytes": 40,
        "weight_grad_release_bytes": 60,
        **changes,
    }
    return BlockCost(**arguments)


# traversals


@pytest.mark.parametrize(
    ("traversal", "walk"),
    [
        ("ud", [(0, 0), (1, 0), (2, 0)]),
        ("loop", [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]),
        ("wave", [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]),
    ],
)
def test_walks(traversal, walk):
    assert [place_of(traversal, 3, k) for k in range(len(walk))] == walk
    assert [position_of(traversal, 3, stage, chunk) for stage, chunk in walk] == list(range(len(walk)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"traversal": "zigzag"}, "traversal = 'zigzag': no such traversal; use one of ud, loop, wave"),
        ({"traversal": "wave", "chunks": 3}, "chunks = 3: does not fit traversal wave; wave has exactly 2"),
        ({"traversal": "loop", "chunks": 1}, "chunks = 1: does not fit traversal loop; loop has 2 or more"),
        ({"stages": 0}, "stages = 0: a pipeline has at least one stage; use 1 or more"),
        ({"microbatches": 0}, "microbatches = 0: nothing to schedule; use 1 or more"),
        ({"sites": 3}, "sites = 3: 4 stages cannot be split evenly; use a divisor of 4"),
        ({"forward_ms": math.nan}, "forward_ms = nan: is not a finite time >= 0; give milliseconds"),
        ({"weight_grad_ms": -1}, "weight_grad_ms = -1: is not a finite time >= 0; give milliseconds"),
        ({"latency_ms": math.inf}, "latency_ms = inf: is not a finite time >= 0; give milliseconds"),
        ({"memory_microbatches": -2}, "memory_microbatches = -2: is not a finite amount >= 0"),
        ({"weight_grad_pieces": 0}, "weight_grad_pieces = 0: W has at least one piece; use 1 or more"),
        ({"release_input_grad": 0.25, "release_weight_grad": 0.25}, "keep = 1.0: F keeps more than D and W release"),
    ],
)
def test_uniform_refuses(changes, message):
    with pytest.raises(FieldError) as raised:
        uniform(**changes)
    assert str(raised.value).startswith(message)


# block costs


def test_durations_and_memory_by_kind():
    block = cost()
    assert [block.duration_ns(kind) for kind in "FDWB"] == [10, 20, 7, 27]
    assert [block.duration_ns("W", piece, 3) for piece in range(3)] == [3, 2, 2]
    assert [block.take_bytes(kind) for kind in "FDWB"] == [100, 0, 0, 0]
    assert [block.release_bytes(kind) for kind in "FDWB"] == [0, 40, 60, 100]
    assert cost(fused_backward_ns=25).duration_ns("B") == 25


def test_what_is_taken_must_be_released():
    message = "forward_keep_bytes = 100: a microbatch takes 100 bytes but releases 99"
    with pytest.raises(FieldError, match=message):
        cost(weight_grad_release_bytes=59)


@pytest.mark.parametrize("value", [-1, 1.5, math.nan, True, "3"])
def test_costs_are_whole_and_not_negative(value):
    with pytest.raises(FieldError, match=r"forward_ns = .*: is not a whole number >= 0"):
        cost(forward_ns=value)


def test_what_64_bits_could_not_add_up_is_refused():
    with pytest.raises(FieldError, match=r"forward_ns = 9223372036854775808: is more than 2\*\*53"):
        cost(forward_ns=2**63)
    with pytest.raises(FieldError, match=r"latency_ns = 9007199254740993: is more than 2\*\*53"):
        Hop(latency_ns=2**53 + 1)


def test_recomputation_keeps_the_input_and_lengthens_d():
    again = cost(fused_backward_ns=25).recomputed(30)
    assert (again.forward_keep_bytes, again.input_grad_take_bytes) == (30, 70)
    assert (again.input_grad_ns, again.fused_backward_ns) == (30, 35)
    assert (again.forward_ns, again.weight_grad_ns) == (10, 7)
    assert cost().recomputed(500).forward_keep_bytes == 100  # an input larger than what F keeps changes nothing


def test_pacing_scales_times_only():
    paced = cost(fused_backward_ns=25).scaled(2.5)
    assert (paced.forward_ns, paced.input_grad_ns, paced.weight_grad_ns, paced.fused_backward_ns) == (25, 50, 18, 62)
    assert paced.forward_keep_bytes == 100


@given(total=st.integers(0, 10**12), pieces=st.integers(1, 50))
def test_pieces_add_up(total, pieces):
    shares = [split(total, piece, pieces) for piece in range(pieces)]
    assert sum(shares) == total
    assert set(shares[1:]) <= {total // pieces}


# uniform


def test_uniform_shares_a_stage_among_its_chunks():
    """7 ns on two chunks: the remainder goes to chunk 0; so does the odd unit of memory."""
    problem = uniform(traversal="wave", forward_ms=7e-6, release_input_grad=0.5, keep=1.0)
    assert [c.forward_ns for c in problem.costs[3]] == [4, 3]
    assert [c.forward_keep_bytes for c in problem.costs[0]] == [2**19, 2**19]
    assert [c.weight_grad_release_bytes for c in problem.costs[0]] == [2**18, 2**18]
    assert problem.work_ns(0) == 8 * (7 + 46_000_000 + 21_000_000)


def test_uniform_breaks_neither_on_tiny_nor_on_huge_times():
    assert uniform(forward_ms=0.0004).costs[0][0].forward_ns == 400
    assert uniform(forward_ms=600_000).forward_reference_ns() == 600 * 10**9


def test_uniform_takes_at_d_what_f_did_not_keep():
    block = uniform(keep=0.25).costs[0][0]
    assert (block.forward_keep_bytes, block.input_grad_take_bytes) == (2**18, 3 * 2**18)
    assert (block.input_grad_release_bytes, block.weight_grad_release_bytes) == (2**19, 2**19)


def test_only_boundaries_between_sites_cost_and_share_their_wire():
    far = {"sites": 2, "latency_ms": 9.5, "serialisation_ms": 76}
    cross = Hop(latency_ns=9_500_000, serialisation_ns=76_000_000, wire="0>1")
    back = replace(cross, wire="1>0")
    ud = uniform(**far)
    assert ud.sites == (0, 0, 1, 1)
    assert ud.forward_hops == (Hop(), cross, Hop())
    assert ud.backward_hops == (Hop(), back, Hop())
    wave = uniform(traversal="wave", **far)
    assert wave.forward_hops == (Hop(), cross, Hop(), Hop(), Hop(), back, Hop())
    assert wave.backward_hops == (Hop(), back, Hop(), Hop(), Hop(), cross, Hop())
    loop = uniform(traversal="loop", **far)  # position 3 is stage 3, position 4 stage 0
    assert loop.forward_hops == (Hop(), cross, Hop(), back, Hop(), cross, Hop())
    assert ud.wires == wave.wires == loop.wires == ("0>1", "1>0")


def test_messages_and_crossings():
    problem = uniform(sites=2, latency_ms=1)
    assert problem.hop("F", 1) == problem.forward_hops[1]
    assert problem.hop("D", 2) == problem.hop("B", 2) == problem.backward_hops[1]
    assert problem.hop("F", 3) is None
    assert problem.hop("D", 0) is None
    assert problem.hop("W", 1) is None
    assert [problem.crosses_sites("F", k) for k in range(4)] == [False, True, False, False]
    assert [problem.crosses_sites("D", k) for k in range(4)] == [False, False, True, False]
    assert problem.message_hop("reduce", 0) is None
    replica = DataParallel(reduce=Hop(wire="r"), gather=Hop(wire="g"))
    parallel = replace(problem, data_parallel=((replica,),) * 4)
    assert parallel.message_hop("reduce", 3) == Hop(wire="r")
    assert parallel.message_hop("gather", 3) == Hop(wire="g")
    assert parallel.wires == ("0>1", "1>0", "g", "r")


# the problem itself


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("costs", ((cost(),),) * 3, "costs = '3 entries': this problem needs 4"),
        ("forward_hops", (Hop(),) * 4, "forward_hops = '4 entries': this problem needs 3"),
        ("activation_limit_bytes", (None,), "activation_limit_bytes = '1 entries': this problem needs 4"),
        ("activation_limit_bytes", (1, 1, -1, 1), r"activation_limit_bytes\[2\] = -1: is negative"),
        ("sites", (0, 1), "sites = '2 entries': this problem needs 4"),
        ("data_parallel", ((DataParallel(reduce=Hop()),),), "data_parallel = '1 entries': this problem needs 4"),
    ],
)
def test_shapes_must_agree(field, value, message):
    with pytest.raises(FieldError, match=message):
        replace(uniform(), **{field: value})


@pytest.mark.parametrize("hop", [Hop(latency_ns=1), Hop(wire="w")])
def test_a_hop_inside_a_stage_is_free(hop):
    wave = uniform(traversal="wave", stages=2)
    with pytest.raises(FieldError, match=r"backward_hops\[1\] = .*: positions 1 and 2 are both on stage 1"):
        replace(wave, backward_hops=(Hop(), hop, Hop()))


def test_memory_floor():
    uniform(memory_microbatches=1).check_memory_floor()
    with pytest.raises(Infeasible, match=r"activation_limit_bytes\[0\] = 524288: one microbatch needs 1048576 bytes"):
        uniform(memory_microbatches=0.5).check_memory_floor()
    # recomputation: chunk 0 keeps 10 and takes 90 more at its D, when chunk 1 may be gone
    first, second = (
        cost().recomputed(10),
        cost(forward_keep_bytes=50, input_grad_release_bytes=0, weight_grad_release_bytes=50),
    )
    wave = replace(uniform(traversal="wave", stages=1), costs=((first, second),))
    replace(wave, activation_limit_bytes=(100,)).check_memory_floor()
    with pytest.raises(Infeasible, match="one microbatch needs 100 bytes on stage 0"):
        replace(wave, activation_limit_bytes=(99,)).check_memory_floor()


def test_the_digest_is_of_the_content():
    assert uniform().digest() == uniform().digest()
    assert uniform().digest() != uniform(forward_ms=38.000001).digest()
    again = msgspec.json.decode(msgspec.json.encode(uniform(sites=2, latency_ms=3)), type=Problem)
    assert again == uniform(sites=2, latency_ms=3)
    assert again.digest() == uniform(sites=2, latency_ms=3).digest()


# links


def test_a_message_takes_alpha_plus_beta_bytes():
    link = Link(source=0, target=1, transport="gloo", latency_ns=1000, bandwidth_bytes_per_s=3_000_000_000)
    assert link.serialisation_ns(1) == 1  # a third of a ns, rounded up
    assert link.serialisation_ns(3_000_000_000) == 10**9
    assert link.delay_ns(6000) == 3000
    assert replace(link, bandwidth_bytes_per_s=None).delay_ns(2**40) == 1000


def test_the_runs_own_transport_is_preferred():
    gloo = Link(source=0, target=1, transport="gloo", latency_ns=2, bandwidth_bytes_per_s=None)
    mpi = replace(gloo, transport="mpi", latency_ns=1)
    table = LinkTable(links=(mpi, gloo), site_of_rank=(0, 1))
    assert table.between(0, 1) == gloo
    assert table.between(0, 1, "mpi") == mpi
    assert replace(table, run_transport="nccl").between(0, 1) == mpi
    assert table.transports() == ("mpi", "gloo")
    with pytest.raises(FieldError, match="links = '1->0': this pair was not measured"):
        table.between(1, 0)
    with pytest.raises(FieldError, match="this pair was not measured"):
        table.between(0, 1, "nccl")


@pytest.mark.parametrize("field", ["latency_ns", "serialisation_ns"])
def test_hops_are_whole_ns(field):
    with pytest.raises(FieldError, match=f"{field} = -1: is not a whole number >= 0; give nanoseconds"):
        Hop(**{field: -1})
