"""The stopping rule worked by hand, and the exchange over a channel whose times are known."""

import queue
import threading

import numpy as np
import pytest

from crosspipe.profile.pingpong import BOTH_WAYS, Allowance, Pattern, Rule, initiate, next_batch, respond

RULE = Rule(width=0.1, fewest=10, most=100, warmup=2)


def test_one_comes_first_and_the_fewest_are_made_whatever_the_budget() -> None:
    assert next_batch(np.empty(0, dtype=np.int64), 99.0, Allowance(1.0), RULE) == 1
    assert next_batch(np.array([5, 5, 5]), 99.0, Allowance(1.0), RULE) == 7


@pytest.mark.parametrize(
    # one round trip of a second so far, two warm-ups to come, then as many as fit; six are needed for an interval
    ("limit_s", "expected"),
    [(20.0, 9), (10.0, 7), (9.0, 6), (3.0, 5)],
)
def test_fewer_where_the_limit_is_near_but_never_below_an_interval(limit_s: float, expected: int) -> None:
    assert next_batch(np.array([1_000_000_000]), 1.0, Allowance(1.0, limit_s), RULE) == expected


def test_six_are_enough_where_the_limit_is_reached() -> None:
    assert next_batch(np.array([10**9, 2 * 10**9] * 3), 12.0, Allowance(1.0, 13.0), RULE) == 0


def test_a_narrow_interval_stops() -> None:
    # of ten samples the 95 % interval is from the 2nd to the 9th: 1000 to 1095 is 9.5 % of 1000, 1000 to 1105 is 10.5 %
    assert next_batch(np.array([900] + [1000] * 7 + [1095, 5000]), 0.0, Allowance(1.0), RULE) == 0
    assert next_batch(np.array([900] + [1000] * 7 + [1105, 5000]), 0.0, Allowance(1.0), RULE) == 10


@pytest.mark.parametrize(
    # 20 round trips of 50 ms so far, a second to spend, two warm-ups before each batch
    ("spent_s", "expected"),
    [(-9.0, 20), (0.0, 18), (0.5, 8), (0.85, 1), (0.9, 0), (3.0, 0)],
)
def test_a_batch_doubles_but_fits_the_time_left(spent_s: float, expected: int) -> None:
    assert next_batch(np.array([40_000_000, 60_000_000] * 10), spent_s, Allowance(1.0001), RULE) == expected


def test_the_most_is_kept() -> None:
    assert next_batch(np.array([100, 200] * 40), 0.0, Allowance(1.0), RULE) == 20


class Wire:
    """Two threads' channel and control: queues, with round trips taken from a list."""

    name = "wire"

    def __init__(self, trips: list[int]) -> None:
        self.trips, self.there, self.told = iter(trips), queue.Queue(), queue.Queue()

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        self.there.put(count)
        return [next(self.trips) for _ in range(count)]

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        assert self.there.get(timeout=5) == count

    def stream(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> list[int]:
        self.there.put((window, count, both))
        return [next(self.trips) for _ in range(count)]

    def drain(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> None:
        assert self.there.get(timeout=5) == (window, count, both)

    def tell(self, peer: int, count: int) -> None:
        self.told.put(count)

    def hear(self, peer: int) -> int:
        return self.told.get(timeout=5)


def test_warm_ups_are_kept_but_not_counted() -> None:
    # a warm-up and one; a warm-up and nine, that spread; a warm-up and ten, that settle the median
    wire = Wire([9000, 1000, 8000] + [2000, 1000] * 4 + [2000, 7000] + [1500] * 10)
    answering = threading.Thread(target=respond, args=(wire, wire, 0, 64))
    answering.start()
    cell = initiate(wire, wire, 0, 1, 64, Allowance(60.0), Rule(width=0.05, most=20))
    answering.join(5)
    assert not answering.is_alive()
    assert cell.round_trip_ns.tolist() == [9000, 1000, 8000] + [2000, 1000] * 4 + [2000, 7000] + [1500] * 10
    assert cell.warmup.tolist() == [True, False, True] + [False] * 9 + [True] + [False] * 10
    assert cell.one_way_ns.tolist() == [500, 1000] * 5 + [750] * 10
    assert (cell.transport, cell.source, cell.target, cell.size_bytes) == ("wire", 0, 1, 64)
    assert not cell.skipped


def test_windows_are_repeated_by_the_same_rule() -> None:
    wire, pattern = Wire([9000, 5000, 8000] + [5000] * 9), Pattern(BOTH_WAYS, 16)
    answering = threading.Thread(target=respond, args=(wire, wire, 0, 64, pattern))
    answering.start()
    cell = initiate(wire, wire, 0, 1, 64, Allowance(60.0), Rule(width=0.05), pattern)
    answering.join(5)
    assert not answering.is_alive()
    assert cell.pattern == pattern
    assert cell.round_trip_ns[~cell.warmup].tolist() == [5000] * 10


@pytest.mark.parametrize(("expected_s", "made"), [(2.0, []), (0.0, [10**9, 10**9])])
def test_what_does_not_fit_the_limit_is_skipped(expected_s: float, made: list[int]) -> None:
    # six a second each in five seconds: known beforehand, nothing is made; else one shows it
    wire = Wire([10**9, 10**9])
    answering = threading.Thread(target=respond, args=(wire, wire, 0, 64))
    answering.start()
    cell = initiate(wire, wire, 0, 1, 64, Allowance(1.0, 5.0), Rule(), expected_ns=expected_s * 1e9)
    answering.join(5)
    assert not answering.is_alive()
    assert cell.skipped
    assert cell.round_trip_ns.tolist() == made
    assert len(cell.one_way_ns) == 0
