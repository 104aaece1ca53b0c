"""Whole ticks for a solver that counts in integers: exact where possible, else rounded so that bounds stay valid.

A Problem in ticks is an ordinary Problem whose nanoseconds are ticks. With a tick that divides every duration nothing
is rounded. Else every duration is rounded *down*: any schedule of the true problem, left-shifted, is then a schedule
of the rounded one that takes no longer, so a lower bound in ticks, times the tick, is a lower bound in ns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from crosspipe.problem import BlockCost, DataParallel, Hop, Problem

MOST_TICKS = 2**40  # of a horizon: far below where 64-bit sums of a solver overflow, far above any clock's precision


class Ticks(NamedTuple):
    """A Problem counted in ticks of `tick_ns`; `error_ns` bounds how much less its optimum can be than the true one."""

    problem: Problem
    tick_ns: int
    error_ns: int


def in_ticks(problem: Problem, horizon_ns: int) -> Ticks:
    """The problem in ticks for schedules up to `horizon_ns`."""
    tick = math.gcd(*_durations(problem)) or 1
    if horizon_ns // tick <= MOST_TICKS:
        return Ticks(_divided(problem, tick, 1), tick, 0)
    tick = -(-horizon_ns // MOST_TICKS)
    pieces = problem.weight_grad_pieces
    # a path meets each duration at most once: F, D, W in pieces, latency and serialisation of two messages and of DP
    on_a_path = problem.positions * (problem.microbatches * (2 + pieces + 4) + 4)
    return Ticks(_divided(problem, tick, pieces), tick, on_a_path * (tick - 1))


def _durations(problem: Problem) -> list[int]:
    values = []
    for row in problem.costs:
        for cost in row:
            values += [cost.forward_ns, cost.input_grad_ns, cost.backward_ns]
            pieces = problem.weight_grad_pieces
            values += [cost.duration_ns("W", piece, pieces) for piece in range(pieces)]
    for hop in _hops(problem):
        values += [hop.latency_ns, hop.serialisation_ns]
    return values


def _hops(problem: Problem) -> list[Hop]:
    hops = [*problem.forward_hops, *problem.backward_hops]
    for row in problem.data_parallel:
        for replica in row:
            hops += [replica.reduce] + ([replica.gather] if replica.gather else [])
    return hops


def _divided(problem: Problem, tick: int, pieces: int) -> Problem:
    """Every duration in ticks, rounded down; W so that each of its `pieces` is."""

    def cost(one: BlockCost) -> BlockCost:
        return msgspec.structs.replace(
            one,
            forward_ns=one.forward_ns // tick,
            input_grad_ns=one.input_grad_ns // tick,
            weight_grad_ns=one.weight_grad_ns // pieces // tick * pieces,
            fused_backward_ns=one.backward_ns // tick,
        )

    def hop(one: Hop) -> Hop:
        return msgspec.structs.replace(
            one, latency_ns=one.latency_ns // tick, serialisation_ns=one.serialisation_ns // tick
        )

    def replica(one: DataParallel) -> DataParallel:
        return DataParallel(reduce=hop(one.reduce), gather=None if one.gather is None else hop(one.gather))

    return msgspec.structs.replace(
        problem,
        costs=tuple(tuple(cost(c) for c in row) for row in problem.costs),
        forward_hops=tuple(hop(h) for h in problem.forward_hops),
        backward_hops=tuple(hop(h) for h in problem.backward_hops),
        data_parallel=tuple(tuple(replica(r) for r in row) for row in problem.data_parallel),
    )
