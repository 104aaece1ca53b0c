"""Emulated wires against queueing worked out by hand, also with several senders; the common clock."""

from __future__ import annotations

import multiprocessing
import time
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st
from inprocess_ranks import run_ranks

from crosspipe.execute.clock import Clock, CommonClock, Starts, _measure, fitted
from crosspipe.execute.emulation import OwnWire, SharedWire, depart_unshared, open_wires
from crosspipe.execute.inprocess import Hub
from crosspipe.execute.transport import Header
from crosspipe.problem import Hop

HOP = Hop(latency_ns=100, serialisation_ns=40, wire="0>1")


def test_messages_queue_for_the_wire_and_then_travel():
    wire = OwnWire()
    assert wire.depart(1000, HOP) == (1000, 1040, 1140)  # idle
    assert wire.depart(1010, HOP) == (1040, 1080, 1180)  # behind the first
    assert wire.depart(1020, HOP) == (1080, 1120, 1220)  # behind both
    assert wire.depart(2000, HOP) == (2000, 2040, 2140)  # idle again
    assert depart_unshared(1010, HOP) == (1010, 1050, 1150)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=30))
def test_an_own_and_a_shared_wire_serve_alike(tmp_path_factory, messages):
    own, shared = OwnWire(), SharedWire(tmp_path_factory.mktemp("wire") / "wire")
    for ready, serialisation in messages:
        hop = Hop(latency_ns=7, serialisation_ns=serialisation)
        assert own.depart(ready, hop) == shared.depart(ready, hop)


def _depart_often(path, queue):
    wire = SharedWire(path)
    queue.put([wire.depart(0, HOP) for _ in range(200)])


def test_several_senders_share_one_queue(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    senders = [context.Process(target=_depart_often, args=(tmp_path / "wire", queue)) for _ in range(3)]
    for sender in senders:
        sender.start()
    starts = sorted(d.start_ns for _ in senders for d in queue.get(timeout=20))
    for sender in senders:
        sender.join()
    assert starts == [40 * i for i in range(600)]  # never two at a time, never a gap


def test_wires_with_one_sender_need_no_file(tmp_path):
    wires = open_wires({"0>1": (1,), "1>0": (2, 3)}, 2, tmp_path)
    assert list(wires) == ["1>0"]
    assert isinstance(wires["1>0"], SharedWire)
    assert isinstance(open_wires({"0>1": (1,)}, 1, tmp_path)["0>1"], OwnWire)


def test_waiting_never_ends_early():
    clock = Clock(offset_ns=-5_000_000_000)
    for ahead in (0, 200_000, 3_000_000):
        moment = clock.now() + ahead
        assert clock.wait_until(moment) >= moment
    assert clock.now() < time.monotonic_ns() - 4_000_000_000


def test_ranks_of_one_host_share_its_clock_and_agree_on_a_start():
    def body(transport):
        clock = CommonClock(transport).clock
        before = clock.now()
        return clock, before, Starts(transport).agree(clock, lead_ns=1_000_000)

    results = run_ranks(Hub(3), body)
    assert {clock for clock, _, _ in results} == {Clock()}
    (start,) = {start for _, _, start in results}
    assert start >= max(before for _, before, _ in results) + 1_000_000


class _LongLink:
    """The allgather of a transport whose messages take 50 ms."""

    def __init__(self, transport, waits):
        self.transport, self.waits = transport, waits

    def allgather(self, payload):
        rows = self.transport.allgather(payload)
        time.sleep(self.waits)
        return rows


def test_no_start_has_passed_when_the_ranks_hear_of_it_over_a_long_link():
    def body(transport):
        starts = Starts(_LongLink(transport, 0.05 if transport.rank else 0.001))
        heard = []
        for number in range(3):
            if number == 2 and transport.rank == 1:
                time.sleep(0.5)  # one comes late: that is not the link's time
            begin = starts.agree(Clock(), lead_ns=5_000_000)
            heard.append((begin, Clock().now()))
        return heard

    for rows in zip(*run_ranks(Hub(2), body), strict=True):
        (begin,) = {begin for begin, _ in rows}
        assert begin > max(now for _, now in rows)
        assert begin - min(now for _, now in rows) < 900_000_000


class _OtherHost:
    """Rank 0 on a host whose clock is ahead by `offset`; its answers take a while, more on the way there."""

    def __init__(self, offset: int) -> None:
        self.offset, self.trips = offset, 0

    def post_receive(self, source, buffer):
        return self

    def send(self, target, header, tensor):
        self.trips += 1

    def wait(self):
        time.sleep(0.0004)
        answer = time.monotonic_ns() + self.offset
        time.sleep(0.0001 * (self.trips % 3))
        return Header(0, answer, 0, 0, 0)


def test_the_offset_of_another_host_is_found_within_its_stated_error():
    torch.empty(1)
    offset = 123_456_789_012
    clock = _measure(_OtherHost(offset))
    assert abs(clock.offset_ns - offset) <= clock.error_ns
    assert clock.error_ns < 20_000_000


def test_a_drift_follows_from_two_estimates_far_enough_apart():
    first = Clock(offset_ns=1_000_000, error_ns=10, since_ns=0)
    assert fitted(first, Clock(offset_ns=1_050_000, since_ns=4_000_000_000)).drift_ppm == 0  # too soon to tell
    clock = fitted(first, Clock(offset_ns=1_200_000, error_ns=7, since_ns=10_000_000_000))
    assert clock.drift_ppm == 20  # 200 us in 10 s
    assert (clock.offset_ns, clock.error_ns) == (1_200_000, 7)
    # an hour after the last estimate it has gained another 72 ms
    here = time.monotonic_ns()
    late = clock._replace(since_ns=here - 3_600_000_000_000)
    assert 73_200_000 <= late.now() - here <= 73_200_000 + 1_000_000_000


def test_clocks_of_other_hosts_are_estimated_again_after_a_while(monkeypatch):
    estimates = iter([Clock(5, 1, since_ns=0), Clock(60_005, 1, since_ns=6_000_000_000)])
    monkeypatch.setattr(CommonClock, "_estimate", lambda self: next(estimates))
    common = run_ranks(Hub(1), CommonClock)[0]
    common._elsewhere = [1]
    for begin_ms in (0, 4_999):  # nothing is measured before five seconds have passed
        common.keep(SimpleNamespace(begin_ns=begin_ms * 1_000_000))
        assert common.clock == Clock(5, 1)
    common.keep(SimpleNamespace(begin_ns=5_000_000_000))
    assert (common.clock.offset_ns, common.clock.drift_ppm) == (60_005, 10)
