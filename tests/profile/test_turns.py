"""A whole turn on a link whose every time is known: what fits is measured, what does not is named, and time is kept."""

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from crosspipe.profile.link_options import Options
from crosspipe.profile.pingpong import BOTH_WAYS, ONE_WAY, PING_PONG, TOGETHER, Allowance, Cell, Pattern
from crosspipe.profile.places import Place
from crosspipe.profile.streams import rate
from crosspipe.profile.turns import Turn, job_limit_s, play, skipped_of, turns_of

ROUND_TRIP_S, BYTES_PER_S = 0.04, 12.5e6  # 20 ms a way, 100 Mbit/s


class LongLink:
    """Both ends of a link between two threads; sending moves `clock_s` on by what alpha + beta*s says."""

    name = "mpi"

    def __init__(self, bytes_per_s: float = BYTES_PER_S) -> None:
        self.bytes_per_s = bytes_per_s
        self.clock_s, self.told = 0.0, {0: queue.Queue(), 1: queue.Queue()}
        self.sent, self.answered = queue.Queue(), queue.Queue()

    def ping(self, peer: int, size_bytes: int, count: int) -> list[int]:
        return self._take(ROUND_TRIP_S + 2 * size_bytes / self.bytes_per_s, count)

    def stream(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> list[int]:
        return self._take(ROUND_TRIP_S + window * size_bytes / self.bytes_per_s, count)

    def _take(self, each_s: float, count: int) -> list[int]:
        self.sent.put(count)
        self.answered.get(timeout=10)  # both ends are here: neither reads the clock while it moves
        self.clock_s += count * each_s
        return [round(each_s * 1e9)] * count

    def pong(self, peer: int, size_bytes: int, count: int) -> None:
        assert self.sent.get(timeout=10) == count
        self.answered.put(count)

    def drain(self, peer: int, size_bytes: int, window: int, count: int, *, both: bool) -> None:
        assert self.sent.get(timeout=10) == count
        self.answered.put(count)

    def tell(self, peer: int, count: int) -> None:
        self.told[peer].put(count)

    def hear(self, peer: int) -> int:
        return self.told[1 - peer].get(timeout=10)


def played(
    turn: Turn,
    allowed: Allowance,
    monkeypatch: pytest.MonkeyPatch,
    link: LongLink | None = None,
    before: Sequence[Cell] = (),
) -> tuple[list[Cell], float]:
    """The cells of both ranks, and what the turn took by the link's clock."""
    link, options = link or LongLink(), Options(out=Path("unused"))
    begun_s = link.clock_s
    monkeypatch.setattr(time, "monotonic", lambda: link.clock_s)
    cells: dict[int, list[Cell]] = {}

    def as_rank(rank: int) -> None:
        cells[rank] = play(turn, link, link, rank, options, allowed, [c for c in before if c.source == rank])

    ranks = [threading.Thread(target=as_rank, args=(rank,)) for rank in (0, 1)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(30)
    assert set(cells) == {0, 1}
    return cells[0] + cells[1], link.clock_s - begun_s


@pytest.mark.parametrize("limit_s", [5.0, 10.0, 20.0, 60.0])
def test_a_turn_ends_in_time(limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, took_s = played(Turn("mpi", ((0, 1),)), Allowance(1.0, limit_s), monkeypatch)
    assert took_s <= 1.2 * limit_s
    # 1 B to 4 MiB both ways; windows of 16 KiB on, five sizes one way each and once both ways
    assert len(cells) == 2 * 12 + 3 * 5
    measured = {c.size_bytes for c in cells if c.pattern.name == PING_PONG and not c.skipped}
    assert 1 in measured
    assert all(len(c.one_way_ns) >= 6 for c in cells if not c.skipped)
    assert skipped_of(cells)


def test_with_time_enough_all_that_settle_make_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, took_s = played(Turn("mpi", ((0, 1),)), Allowance(1.0, 1000.0), monkeypatch)
    # one and nine, each with a warm-up before: 12 repetitions of every cell
    trips = 2 * sum(ROUND_TRIP_S + 2 * 4**power / BYTES_PER_S for power in range(12))
    # 64 messages up to 64 KiB, 4 MiB of those between, two of the largest
    windows = 3 * sum(ROUND_TRIP_S + mib * 2**20 / BYTES_PER_S for mib in (1, 4, 4, 4, 8))
    assert took_s == pytest.approx(12 * (trips + windows))
    assert {len(c.one_way_ns) for c in cells} == {10}
    assert skipped_of(cells) == []
    assert {c.pattern.name for c in cells if c.source == 1} == {PING_PONG, "one_way"}
    assert BOTH_WAYS in {c.pattern.name for c in cells if c.source == 0}


def test_pairs_together_send_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,), took_s = played(Turn("mpi", ((0, 1),), together=True), Allowance(20.0, 40.0), monkeypatch)
    assert cell.pattern.name == TOGETHER
    each_s = ROUND_TRIP_S + 8 * 2**20 / BYTES_PER_S
    assert 20 - 2 * each_s <= took_s <= 20


def test_a_long_fast_link_is_filled_and_pairs_together_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 ms of 10 Gbit/s hold 50 MB, of which 4 MiB would have told nothing: 200 MB are 47 messages of 4 MiB."""
    link = LongLink(1.25e9)
    alone, _ = played(Turn("mpi", ((0, 1),)), Allowance(1.0, 1000.0), monkeypatch, link)
    windows = {(c.size_bytes, c.pattern.name): c.pattern.window for c in alone if c.source == 0}
    assert {windows[4**11, "one_way"], windows[4**11, "both_ways"]} == {47}
    assert windows[4**7, "one_way"] == 64
    largest = next(c for c in alone if (c.size_bytes, c.pattern.name) == (4**11, "one_way"))
    found = rate(largest.round_trip_ns[~largest.warmup], 47 * 4**11, ROUND_TRIP_S * 1e9)
    assert found is not None
    assert found.median == pytest.approx(1.25e9, rel=1e-6)
    (together,), _ = played(Turn("mpi", ((0, 1),), together=True), Allowance(5.0, 9.0), monkeypatch, link, alone)
    assert together.pattern == Pattern(TOGETHER, 47)


def test_windows_that_there_is_no_time_for_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, took_s = played(Turn("mpi", ((0, 1),)), Allowance(1.0, 10.0), monkeypatch, LongLink(1.25e9))
    assert took_s <= 12
    assert {one.pattern for one in skipped_of(cells)} <= {PING_PONG, ONE_WAY, BOTH_WAYS}
    assert skipped_of(cells)


def test_turns_inside_a_site_come_first_and_crossings_one_by_one() -> None:
    places = [
        Place(rank=r, site=r // 2, node=f"n{r}", host=f"n{r}", machine=f"m{r}", network="net", cores=(0, 1))
        for r in range(4)
    ]
    said = [str(turn) for turn in turns_of(Options(out=Path("unused")), places)]
    inside, across = ["mpi 0-1 2-3", "gloo 0-1 2-3"], ["0-3", "1-2", "0-2", "1-3"]
    assert said[:2] == inside
    assert sorted(said[2:10]) == sorted(f"{transport} {pair}" for transport in ("mpi", "gloo") for pair in across)
    assert said[10:] == ["gloo 0-2 1-3 together", "gloo 2-0 3-1 together"]


def test_a_job_that_ends_soon_sets_the_limit() -> None:
    assert job_limit_s({"SLURM_JOB_END_TIME": "1300"}, 1000.0) == pytest.approx(240.0)
    assert job_limit_s({}, 1000.0) == job_limit_s({"SLURM_JOB_END_TIME": "0"}, 1000.0) == float("inf")
