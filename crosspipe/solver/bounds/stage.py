"""The bound of one stage: its work, and the idle time that no order can fill.

Three windows idle. *Lead*: before the first D only F can run, and only as many as memory holds. *Rounds*: F of
microbatch k + M waits for D of k, so between F and D of k, 0, M, 2M, ... only what memory holds can run. *Drain*: from
the last F to its own D and to the end only gradients that memory still held can run. Proofs: `docs/bounds.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from crosspipe.problem import Problem
from crosspipe.solver.bounds.knapsack import Item, Pair, most_gradient_work_ns, most_work_ns
from crosspipe.solver.bounds.paths import Paths


class StageBound(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds one stage: `value_ns` = `work_ns` + `lead_ns` + `rounds` * `round_ns` + `drain_ns`.

    `drain_ns` is what idles after the last F at least, `late_ns` what of it idles after the last D.
    `fits` microbatches can wait for their first D at once (None: any number). Where all fit (`all_fit`), lead
    and drain may be the same time, and `value_ns` can be less than that sum.
    """

    stage: int
    value_ns: int
    work_ns: int
    head_ns: int
    lead_ns: int
    rounds: int
    round_ns: int
    drain_ns: int
    late_ns: int
    turn_ns: int
    fits: int | None
    all_fit: bool


def stage_bounds(problem: Problem, paths: Paths) -> list[StageBound]:
    """One bound per stage, see `stage_bound`."""
    turns = paths.turns_ns()
    return [stage_bound(problem, paths, turns, stage) for stage in range(problem.stages)]


def stage_bound(problem: Problem, paths: Paths, turns: Sequence[int], stage: int) -> StageBound:
    """The bound of one stage, for any number of chunks; O(chunks) after `paths_of`; `turns` is `paths.turns_ns()`.

    Blocks of one kind on one (stage, chunk) are taken to run in microbatch order, which loses nothing: give the k-th
    executed block the number k. With u(c) the earliest start of F on chunk c, R the turn of the last chunk C - 1
    (from the end of its F to the start of its D), n microbatches:

    *Lead.* Before the first F of chunk c only F of chunks < c run, and what they take fits the limit together with
    that F; before the first D on the stage (which is one of chunk C - 1, at or after u(C-1) + F + R) only F run, and
    what they take fits together with that D. Nothing was released by then.

    *Drain.* Let e be the end of the last F of chunk C - 1. All F are done. When it started, memory held the whole of
    its own microbatch and whatever D and W the others owed, so the owed work O is a knapsack. Its own D starts at
    e + R or later, and so on down the chunks; the time up to each such start, and up to the end of all that follows,
    exceeds what can run in it.

    *Late drain.* The last D on the stage is one of chunk 0. When it starts, memory holds its own microbatch and the W
    that the others owe; after it only these W run, until its tail is over.

    *Rounds.* F(C-1) of microbatch k + M cannot start before D(C-1) of k, M = floor((limit - take) / keep): nothing of
    microbatches >= k has been released, so M + 1 of them would be held when D of k starts. Windows [F of k, D of k] at
    k = 0, M, 2M, ... are thus disjoint. In each, gradients owed at its start and F whose memory fits at its end run.
    The first belongs to the lead and the last to the drain.

    If all n fit, lead and drain may overlap. Then either the last F follows the first D and they do not, or all F
    precede all D.
    """
    n = problem.microbatches
    chunks = range(problem.chunks)
    here = [problem.position(stage, chunk) for chunk in chunks]
    costs = problem.costs[stage]
    limit = problem.activation_limit_bytes[stage]
    forward = [paths.forward[p] for p in here]
    gradient = [paths.input_grad[p] + paths.weight_grad[p] for p in here]
    keep, take = [cost.forward_keep_bytes for cost in costs], costs[-1].input_grad_take_bytes
    head = paths.head[here[0]]
    turn = turns[here[-1]]
    first_gradient = paths.head[here[-1]] + forward[-1] + turn
    after = min(paths.reduce[p] for p in here)
    work = n * (sum(forward) + sum(gradient))

    def room(taken: int) -> int | None:
        return None if limit is None else limit - taken

    def forward_work(chunks_before: int, by_ns: int, capacity: int | None, most_last: int = n) -> int:
        """Most work in F of the first chunks by a time, within memory, the last of them at most `most_last` times."""
        items = []
        for c in range(chunks_before):
            most = n if c < problem.chunks - 1 else most_last
            items.append(Item(forward[c], keep[c], paths.forward_by_ns(here[c], by_ns, most)))
        return most_work_ns(items, capacity)

    def lead(most_last: int) -> int:
        """Idle before the first D if at most `most_last` F of the last chunk precede it."""
        idle = [head, first_gradient - forward_work(problem.chunks, first_gradient, room(take), most_last)]
        for c in range(1, problem.chunks):
            idle.append(paths.head[here[c]] - forward_work(c, paths.head[here[c]], room(keep[c])))
        return max(idle)

    def owed(most_input_grad_ns: Sequence[int]) -> int:
        """Most work in D and W of the other microbatches that the memory can hold when the last F starts."""
        pairs = [
            Pair(
                paths.input_grad[p], paths.weight_grad[p], cost.weight_grad_release_bytes, cost.forward_keep_bytes, most
            )
            for p, cost, most in zip(here, costs, most_input_grad_ns, strict=True)
        ]
        whole = problem.weight_grad_pieces == 1
        return most_gradient_work_ns(pairs, n - 1, room(sum(keep)), whole) + _piece_slack_ns(problem, stage)

    owed_ns = owed([n * paths.input_grad[p] for p in here])
    drain = [after]
    reach, own = turn, 0  # from the end of the last F to the start of its D on chunk c, and its own work in between
    for c in reversed(chunks):
        drain.append(reach - own - owed_ns)
        own += gradient[c]
        if c > 0:
            reach += paths.input_grad[here[c]] + paths.down_ns(here[c], here[c - 1])
    first = costs[0]
    waiting = [
        Item(paths.weight_grad[p], c.weight_grad_release_bytes, n * paths.weight_grad[p])
        for p, c in zip(here, costs, strict=True)
    ]
    unit = None if problem.weight_grad_pieces == 1 else 1
    only_w = most_work_ns(waiting, room(first.forward_keep_bytes + first.input_grad_take_bytes), unit)
    late = max(0, paths.tail[here[0]] - only_w - paths.weight_grad[here[0]] - _piece_slack_ns(problem, stage))
    last = turn + paths.input_grad[here[-1]] + paths.tail[here[-1]]  # from the end of the last F to the very end
    others = [paths.input_grad_within_ns(p, last, n) - paths.input_grad[p] for p in here]
    drain_ns = max(*drain, late, last - own - owed(others))

    fits = None if limit is None or sum(keep) == 0 else (limit - take) // sum(keep)
    rounds, round_ns = 0, 0
    lead_ns = lead(n)
    if fits is None or n <= fits:
        fill = max(paths.head[here[c]] + n * sum(forward[c:]) for c in chunks)
        fill = max(fill, paths.forward_base[here[-1]] + (n - 1) * paths.forward_step[here[-1]] + forward[-1])
        all_forward_first = max(max(first_gradient, fill) + n * sum(gradient) + max(after, late), fill + last)
        value = max(work + lead_ns + late, work + drain_ns, min(work + lead(n - 1) + drain_ns, all_forward_first))
    else:
        rounds = max(0, (n - 1) // fits - 1)
        round_ns = max(
            0,
            turn
            - most_work_ns([Item(f, k, n * f) for f, k in zip(forward, keep, strict=True)], room(sum(keep) + take))
            - owed_ns,
        )
        value = work + lead_ns + rounds * round_ns + drain_ns
    return StageBound(
        stage=stage,
        value_ns=value,
        work_ns=work,
        head_ns=head,
        lead_ns=lead_ns,
        rounds=rounds,
        round_ns=round_ns,
        drain_ns=drain_ns,
        late_ns=late,
        turn_ns=turn,
        fits=fits,
        all_fit=fits is None or n <= fits,
    )


def _piece_slack_ns(problem: Problem, stage: int) -> int:
    """How much more W work than its even share a memory can hold where W is cut in pieces with remainders, in ns."""
    rest = problem.weight_grad_pieces - 1
    slack = 0
    for cost in problem.costs[stage]:
        if rest and cost.weight_grad_release_bytes:
            slack += rest - (-cost.weight_grad_ns * rest // cost.weight_grad_release_bytes)
    return problem.microbatches * slack
