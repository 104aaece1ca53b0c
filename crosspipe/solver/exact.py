"""`cross_ud`, `cross_wave`, `cross_loop`: the best that candidates, policy search and CP-SAT find in the time.

Each step starts from the best so far and can only improve on it; reaching the lower bound ends the search. A solver
that is missing, fails or lies costs its share of the time and nothing else, and the certificate says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from crosspipe.errors import Infeasible
from crosspipe.problem import Problem
from crosspipe.schedule import check, simulate
from crosspipe.solver.bounds import Bound
from crosspipe.solver.certify import Found, schedule_of
from crosspipe.solver.inorder import decisions
from crosspipe.solver.interrupts import watched
from crosspipe.solver.pool import Candidate, candidates, judged
from crosspipe.solver.request import Request
from crosspipe.solver.search import policy_search

if TYPE_CHECKING:
    from crosspipe.solver.cpsat import Claim

LEAST_S = 0.05  # less is not worth starting a search for
POLICY_SHARE = 0.6  # of the time
POLICY_BLOCKS = 20_000_000  # timed with one worker, where the result must not depend on the clock
SEARCH_S_PER_DECISION = 1e-3  # less for small problems, which CP-SAT settles by itself
BUILD_S_PER_DECISION = 1e-4  # to build and presolve the model, roughly
SOLVER_FAILURES = (ArithmeticError, AttributeError, MemoryError, RuntimeError, TypeError, ValueError)


class Standing(msgspec.Struct):
    """Where the search stands: candidates best first, proven bounds, and sentences for the certificate."""

    deadline_s: float  # time.monotonic()
    bounds: list[Bound]
    pool: list[Candidate] = []
    notes: list[str] = []

    @property
    def remaining_s(self) -> float:
        """Seconds left."""
        return self.deadline_s - time.monotonic()

    @property
    def best(self) -> Candidate:
        return self.pool[0]

    @property
    def bound_ns(self) -> int:
        return max(bound.value_ns for bound in self.bounds)

    @property
    def settled(self) -> bool:
        """Whether nothing better can exist."""
        return bool(self.pool) and self.best.makespan_ns <= self.bound_ns

    def not_counting(self, compile_kernels: Callable[[], object]) -> None:
        """Calls what, the first time ever, compiles for many seconds; they are not taken from the time to search."""
        began = time.monotonic()
        compile_kernels()
        self.deadline_s += time.monotonic() - began

    def add(self, candidate: Candidate) -> None:
        self.pool = sorted([*self.pool, candidate], key=lambda c: c.makespan_ns)


def search(problem: Problem, request: Request) -> Found:
    """The best schedule found within `request.time_limit_s`, with proofs and notes."""
    standing = Standing(request.started_s + request.time_limit_s, [request.bound])
    with watched() as interrupted:
        try:
            for step in (_cheap, _policies, _cp_sat):
                if not standing.settled and not interrupted.is_set():
                    step(problem, standing, request)
        except KeyboardInterrupt:
            if not standing.pool:
                raise
            interrupted.set()
    if interrupted.is_set():
        standing.notes.append("interrupted: the best schedule so far")
    best = standing.best
    return msgspec.structs.replace(
        best.found,
        proofs=tuple(standing.bounds[1:]),
        notes=tuple(standing.notes),
        parameters={**best.found.parameters, "found_by": best.name, "time_limit_s": request.time_limit_s},
        ideal_makespan_ns=None,
    )


def _cheap(problem: Problem, standing: Standing, request: Request) -> None:
    """Candidates, until one reaches the bound; all of them whatever the time, so that no static family is better."""
    standing.not_counting(lambda: list(candidates(least(problem.traversal), ())))
    for candidate in candidates(problem, request.hints):
        standing.add(candidate)
        request.tell(standing.best.makespan_ns, standing.bound_ns)
        if standing.settled:
            break


def _policies(problem: Problem, standing: Standing, request: Request) -> None:
    """A first share of the time for policy search: seconds, or, with one worker, a number of policies."""
    standing.not_counting(lambda: policy_search(least(problem.traversal), evaluations=1))
    remaining = standing.remaining_s
    if remaining < LEAST_S:
        return
    blocks = 3 * problem.microbatches * problem.positions
    small = min(POLICY_SHARE * remaining, SEARCH_S_PER_DECISION * decisions(problem))
    found = policy_search(
        problem,
        budget_s=remaining if too_large(problem, request) else small,
        seed=request.seed,
        target_ns=standing.bound_ns,
        evaluations=POLICY_BLOCKS // blocks if request.workers == 1 else None,
    )
    standing.add(judged(problem, "policy_search", Found(orders=found.orders, messages=found.messages)))
    request.tell(standing.best.makespan_ns, standing.bound_ns)


def least(traversal: str) -> Problem:
    """Some problem that is solved at once; compiled code is the same for all."""
    return Problem.uniform(
        traversal=traversal, stages=2, microbatches=1, forward_ms=1, input_grad_ms=1, weight_grad_ms=1
    )


def too_large(problem: Problem, request: Request) -> bool:
    """Whether CP-SAT would spend its time on building and presolving its model alone."""
    return decisions(problem) * BUILD_S_PER_DECISION > (1 - POLICY_SHARE) * request.time_limit_s


def _cp_sat(problem: Problem, standing: Standing, request: Request) -> None:
    """Lets CP-SAT improve on the best candidate that has a normal form; believes nothing it says unchecked."""
    if too_large(problem, request):
        standing.notes.append(f"CP-SAT was left out: {decisions(problem)} order decisions are too many for the time")
        return
    if standing.remaining_s < LEAST_S:
        standing.notes.append("no time was left for CP-SAT")
        return
    try:
        from crosspipe.solver.cpsat import improve
    except ImportError as error:
        standing.notes.append(f"CP-SAT is missing ({error}): the best schedule found without it")
        return
    before = standing.best

    def listen(makespan_ns: int, bound_ns: int) -> None:
        request.tell(min(makespan_ns, before.makespan_ns), max(bound_ns, standing.bound_ns))

    try:
        claims = (
            improve(
                problem,
                schedule_of(problem, start.name, start.found),
                lower_ns=request.bound.value_ns,
                time_limit_s=standing.remaining_s,
                workers=request.workers,
                seed=request.seed,
                listen=listen,
            )
            for start in standing.pool
        )
        claim = next(c for c in claims if c is not None)  # one microbatch at a time has a normal form
    except SOLVER_FAILURES as error:
        standing.notes.append(f"CP-SAT failed ({type(error).__name__}: {error}): the best schedule found without it")
        return
    _weigh(problem, standing, claim)


def _weigh(problem: Problem, standing: Standing, claim: Claim) -> None:
    """Takes from a claim what stands up to our own check, and says what does not."""
    before = standing.best
    if claim.orders is None:
        said = "found nothing better in its time" if claim.status == "UNKNOWN" else f"ended with {claim.status}"
        standing.notes.append(f"CP-SAT {said}: the schedule it started from ({before.name})")
    else:
        found = Found(orders=claim.orders, messages=claim.messages)
        try:
            candidate = judged(problem, "cp_sat", plainest(problem, found))
        except Infeasible as error:
            standing.notes.append(f"the answer of CP-SAT was dropped, it is not valid: {error}")
            return
        standing.add(candidate)
        if claim.makespan_ns is not None and candidate.makespan_ns > claim.makespan_ns + claim.error_ns:
            standing.notes.append(
                f"CP-SAT planned {claim.makespan_ns} ns, re-timed the schedule takes {candidate.makespan_ns} ns"
            )
    if claim.bound_ns > standing.best.makespan_ns:
        standing.notes.append(
            f"dropped: CP-SAT claims a bound of {claim.bound_ns} ns, above the re-timed "
            f"{standing.best.makespan_ns} ns of {standing.best.name}"
        )
        return
    if claim.proved:
        standing.bounds.append(_bound(problem, claim))
    elif not claim.error_ns:
        standing.bounds.append(_in_whole_ticks(standing.bounds[0], claim))


def _bound(problem: Problem, claim: Claim) -> Bound:
    words = f"CP-SAT proved that no schedule takes less than {claim.bound_ns / 1e6:.6g} ms"
    if claim.error_ns:
        words += f" (durations rounded down to {claim.tick_ns} ns, which costs at most {claim.error_ns} ns)"
    return Bound(value_ns=claim.bound_ns, proven_by="CP-SAT", explanation=words, assumptions=_assumptions(problem))


def _in_whole_ticks(bound: Bound, claim: Claim) -> Bound:
    """Our own bound, rounded up: every duration is a multiple of the tick, so every makespan is."""
    return msgspec.structs.replace(bound, value_ns=max(bound.value_ns, claim.bound_ns))


def _assumptions(problem: Problem) -> tuple[str, ...]:
    """What CP-SAT's model leaves out of the schedules that could be written down."""
    pieces = problem.weight_grad_pieces
    return (f"W runs whole or in {pieces} pieces",) if pieces > 2 else ()


def plainest(problem: Problem, found: Found) -> Found:
    """The same without listed message orders that do not help, or that different ranks cannot arrange.

    An order that is not valid is given back as it is.
    """
    kinds = {violation.kind for violation in check(problem, schedule_of(problem, "", found))}
    if kinds == {"message_order"}:
        return msgspec.structs.replace(found, messages={})
    if kinds:
        return found
    makespan = simulate(problem, schedule_of(problem, "", found)).makespan_ns
    for wire in found.messages:
        fewer = msgspec.structs.replace(found, messages={w: o for w, o in found.messages.items() if w != wire})
        without = simulate(problem, schedule_of(problem, "", fewer)).makespan_ns
        if without <= makespan:
            found, makespan = fewer, without
    return found
