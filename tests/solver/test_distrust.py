"""A solver that is missing, fails, gives up or lies: the best checked schedule is returned, and marked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, check
from crosspipe.solver import Bound, Progress, cpsat, solve
from crosspipe.solver.cpsat import Claim

OPTIMUM_NS = 48_000_000  # by brute force over all orders


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Two stages, three microbatches; our own bound made weak, so that every method has its turn."""
    weak = Bound(value_ns=30_000_000, proven_by="stage bound", explanation="stage 0 works 30 ms")
    monkeypatch.setattr("crosspipe.solver.portfolio.lower_bound", lambda problem: weak)
    return Problem.uniform(
        traversal="ud",
        stages=2,
        microbatches=3,
        sites=2,
        forward_ms=3,
        input_grad_ms=5,
        weight_grad_ms=2,
        latency_ms=5,
        serialisation_ms=2,
    )


def claiming(**changes: object) -> Callable[..., Claim]:
    claim = Claim("OPTIMAL", OPTIMUM_NS, True, OPTIMUM_NS, None, {}, 1_000_000, 0)
    return lambda *arguments, **options: claim._replace(**changes)


def test_the_truth(problem: Problem) -> None:
    certificate = solve(problem, "cross_ud").certificate
    assert (certificate.makespan_ns, certificate.lower_bound_ns) == (OPTIMUM_NS, OPTIMUM_NS)
    assert certificate.proven_by == "CP-SAT"


def assert_best_without_the_solver(problem: Problem, says: str) -> Schedule:
    schedule = solve(problem, "cross_ud")
    assert check(problem, schedule) == []
    assert says in schedule.certificate.explanation
    assert schedule.certificate.lower_bound_ns <= OPTIMUM_NS <= schedule.certificate.makespan_ns
    assert schedule.certificate.makespan_ns <= solve(problem, "zbh1").certificate.makespan_ns
    return schedule


def test_missing(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crosspipe.solver.cpsat", None)
    assert_best_without_the_solver(problem, "CP-SAT is missing")


def test_failing(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> Claim:
        raise RuntimeError("no licence")

    monkeypatch.setattr(cpsat, "improve", fail)
    assert_best_without_the_solver(problem, "CP-SAT failed (RuntimeError: no licence)")


def test_giving_up(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpsat, "improve", claiming(status="UNKNOWN", bound_ns=0, proved=False, makespan_ns=None))
    schedule = assert_best_without_the_solver(problem, "CP-SAT found nothing better in its time: the schedule it")
    assert schedule.certificate.proven_by == "stage bound"


def test_a_model_it_refuses_is_no_proof(problem: Problem) -> None:
    """More threads than CP-SAT takes: it calls the model invalid; what bound there is, is ours."""
    claim = cpsat.improve(
        problem,
        solve(problem, "zbh1"),
        lower_ns=30_000_000,
        time_limit_s=5,
        workers=20_000,
        seed=0,
        listen=lambda makespan_ns, bound_ns: None,
    )
    assert claim is not None
    assert (claim.status, claim.proved, claim.bound_ns, claim.orders) == ("MODEL_INVALID", False, 30_000_000, None)


def test_lying_about_the_bound(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpsat, "improve", claiming(bound_ns=60_000_000))
    schedule = assert_best_without_the_solver(problem, "CP-SAT claims a bound of 60000000 ns, above the re-timed")
    assert schedule.certificate.lower_bound_ns == 30_000_000


def test_lying_about_the_makespan(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order, one microbatch at a time, is valid but takes 3 * (F 3 + 7 + F 3 + D 5 + 7 + D 5 + W 2)."""
    row = tuple(Block(kind, 0, m) for m in range(3) for kind in "FDW")
    monkeypatch.setattr(cpsat, "improve", claiming(orders=(row, row)))
    assert_best_without_the_solver(problem, "CP-SAT planned 48000000 ns, re-timed the schedule takes 96000000 ns")


@pytest.mark.parametrize(
    "row",
    [
        [Block(kind, 0, m) for m in range(2) for kind in "FDW"],
        [Block(kind, 0, m) for m in range(3) for kind in "DFW"],
    ],
)
def test_an_invalid_answer(problem: Problem, monkeypatch: pytest.MonkeyPatch, row: list[Block]) -> None:
    monkeypatch.setattr(cpsat, "improve", claiming(orders=(tuple(row), tuple(row))))
    assert_best_without_the_solver(problem, "the answer of CP-SAT was dropped, it is not valid")


def hard_problem() -> Problem:
    return Problem.uniform(
        traversal="wave",
        stages=8,
        microbatches=24,
        sites=2,
        forward_ms=38,
        input_grad_ms=46,
        weight_grad_ms=21,
        latency_ms=76,
        serialisation_ms=76,
        memory_microbatches=8,
    )


def test_time_limit_holds_and_progress_is_told() -> None:
    heard: list[Progress] = []
    began = time.monotonic()
    schedule = solve(hard_problem(), "cross_wave", time_limit_s=3, progress=heard.append)
    assert time.monotonic() - began < 10
    assert heard[0].makespan_ns >= heard[-1].makespan_ns >= schedule.certificate.makespan_ns
    for one in heard:
        assert one.gap == pytest.approx(one.makespan_ns / one.lower_bound_ns - 1)
        assert 0 <= one.elapsed_s < 10


SEARCH = """
from crosspipe import Problem, check, solve
problem = Problem.uniform(
    traversal="wave", stages=8, microbatches=24, sites=2, forward_ms=38, input_grad_ms=46, weight_grad_ms=21,
    latency_ms=76, serialisation_ms=76, memory_microbatches=8,
)
import signal
before = signal.getsignal(signal.SIGINT)
schedule = solve(problem, "auto", time_limit_s=100, progress=lambda progress: print("searching", flush=True))
assert check(problem, schedule) == []
assert signal.getsignal(signal.SIGINT) is before
print(schedule.certificate.explanation)
"""


def test_an_interrupt_returns_the_best_so_far() -> None:
    search = subprocess.Popen([sys.executable, "-c", SEARCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert search.stdout is not None
    assert search.stdout.readline() == "searching\n"
    time.sleep(2)
    search.send_signal(signal.SIGINT)
    out, err = search.communicate(timeout=60)
    assert search.returncode == 0, err
    assert "interrupted: the best schedule so far" in out


def test_another_signal_ends_the_search_at_once() -> None:
    """As a batch system's warning does: what its handler raises passes through, without waiting for CP-SAT's limit."""

    class Warned(BaseException):
        pass

    def warn(number: int, frame: object) -> None:
        raise Warned

    start = solve(hard_problem(), "zbv")
    before = signal.signal(signal.SIGUSR2, warn)
    timer = threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    began = time.monotonic()
    try:
        timer.start()
        with pytest.raises(Warned):
            cpsat.improve(
                hard_problem(), start, lower_ns=0, time_limit_s=250, workers=1, seed=0, listen=lambda *told: None
            )
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR2, before)
    assert time.monotonic() - began < 60


def test_one_worker_and_a_seed_decide_the_schedule() -> None:
    problem = Problem.uniform(
        traversal="wave",
        stages=2,
        microbatches=4,
        sites=2,
        forward_ms=4,
        input_grad_ms=5,
        weight_grad_ms=2,
        latency_ms=3,
        serialisation_ms=4,
        memory_microbatches=2,
    )
    first, second = (solve(problem, "auto", workers=1, seed=3, time_limit_s=60) for _ in range(2))
    assert first.orders == second.orders
    assert first.messages == second.messages
    assert first.certificate == second.certificate
    assert first.provenance.workers == 1
