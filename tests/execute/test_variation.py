"""Jitter and bandwidth over time: service times integrated by hand, draws that depend on nothing but their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosspipe.errors import FieldError
from crosspipe.execute.emulation import OwnWire, SharedWire, open_wires
from crosspipe.execute.variation import Bandwidth, Jitter, read_bandwidth
from crosspipe.problem import Hop
from crosspipe.schedule import Message

HALVED = Bandwidth((100, 200), (0.5, 2.0))  # half from 100 on, twice from 200 on


@pytest.mark.parametrize(
    ("start", "serialisation", "end"),
    [
        (0, 100, 100),  # before the first step
        (50, 70, 90 + 50),  # 50 at full speed until 100, 20 at half: 40 more
        (90, 110, 225),  # 10 until 100, 50 until 200, 50 left at twice: 25 more
        (300, 100, 350),
        (100, 0, 100),
    ],
)
def test_a_message_is_served_at_the_bandwidth_of_the_moment(start, serialisation, end):
    assert HALVED.finish_ns(start, serialisation) == end


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_two_messages_in_a_row_take_as_long_as_one_of_both_sizes(start, first, second):
    together = HALVED.finish_ns(start, first + second)
    assert together <= HALVED.finish_ns(HALVED.finish_ns(start, first), second) <= together + 2  # rounded up to ns


def test_wires_queue_at_the_bandwidth_of_the_moment(tmp_path):
    hop = Hop(latency_ns=1000, serialisation_ns=60, wire="0>1")
    for wire in (OwnWire(HALVED), SharedWire(tmp_path / "wire", HALVED)):
        assert wire.depart(50, hop) == (50, 120, 1120)  # 50 at full speed, 10 at half
        assert wire.depart(60, hop) == (120, 210, 1210)  # 40 of it in the 80 until 200, 20 at twice
    wires = open_wires({"0>1": (0,), "1>0": (0,)}, 0, tmp_path, bandwidth={"0>1": HALVED})
    assert wires["0>1"].depart(100, hop).served_ns == 205  # 50 until 200, 10 left at twice
    assert wires["1>0"].depart(100, hop).served_ns == 160


def test_jitter_lengthens_only_latencies_and_depends_on_seed_iteration_and_message():
    jitter, hop = Jitter(1_000_000, seed=3), Hop(latency_ns=5_000_000, serialisation_ns=7, wire="0>1")
    drawn = [jitter.vary(hop, i, Message("F", 1, mb)).latency_ns for i in range(100) for mb in range(40)]
    assert min(drawn) >= 5_000_000
    assert sum(drawn) / len(drawn) == pytest.approx(6_000_000, rel=0.02)  # 5 ms and a mean of 1 ms
    assert jitter.vary(hop, 0, Message("F", 1, 0)).latency_ns == drawn[0]
    assert Jitter(1_000_000, seed=4).vary(hop, 0, Message("F", 1, 0)).latency_ns != drawn[0]
    assert jitter.vary(hop, 0, Message("F", 1, 0)).serialisation_ns == 7
    assert jitter.vary(Hop(), 0, Message("F", 1, 0)) == Hop()


def test_traces_are_read_by_wire_and_count_from_an_origin(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("start_s,factor,wire\n0,0.5,0>1\n1.5,2,0>1\n3,0.25,\n")
    traces = read_bandwidth(file)
    assert traces == {"0>1": Bandwidth((0, 1_500_000_000), (0.5, 2.0)), None: Bandwidth((3_000_000_000,), (0.25,))}
    assert traces["0>1"].since(10).starts_ns == (10, 1_500_000_010)
    hop = Hop(serialisation_ns=100, wire="1>0")
    wire = open_wires({"1>0": (0,)}, 0, tmp_path, bandwidth=traces)["1>0"]  # not named: the one for all others
    assert wire.depart(4_000_000_000, hop).served_ns == 4_000_000_400


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("start_s,factor\n0,0\n", "line 2 of"),
        ("start_s,factor\n1,1\n0.5,1\n", "line 3 of .*rising"),
        ("start_s,factor\n0,fast\n", "line 2 of"),
        ("time,factor\n0,1\n", "line 2 of"),
        ("start_s,factor\n", "has no steps"),
    ],
)
def test_wrong_traces_name_their_line(tmp_path, text, wrong):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(FieldError, match=wrong):
        read_bandwidth(file)
    with pytest.raises(FieldError, match="cannot be read"):
        read_bandwidth(tmp_path / "none.csv")
