"""What the last messages of a busy wire must cost beyond their own service: the tail conflict of a wave.

After its last D messages cross a wire, both chunks of a stage still have their D to run for each of them. When messages
follow one another faster than a stage can pass both, somebody waits. A small exact search over one stage says how long.
"""

from __future__ import annotations

from collections.abc import Sequence

from crosspipe.problem import Problem
from crosspipe.solver.bounds.messages import MessageClass
from crosspipe.solver.bounds.paths import Paths

MOST_MESSAGES = 8  # the last so many are looked at


def most_conflict_ns(problem: Problem, paths: Paths, classes: Sequence[MessageClass]) -> int:
    """What `tail_conflict_ns` cannot exceed, quickly; 0 where it does not apply."""
    *others, last = classes
    if last.kind != "D" or not others or any(c.kind not in ("F", "D") for c in others) or not last.serialisation_ns:
        return 0
    return min(_until_ready_ns(problem, paths, c, last) for c in others)


def tail_conflict_ns(problem: Problem, paths: Paths, classes: Sequence[MessageClass]) -> int:
    """What can be added to the bound of a wire that serves `classes` and after them what follows the last, in ns.

    The last class are D messages, the others F or D messages that come before it in every microbatch. Look at the last
    k of the last class, s the start of service of the first of these k. Either all other messages were served before s:
    then the k messages and all that follows them take their least time X(k) from s on, which may exceed the
    k * serialisation + after that the wire bound counts. Or some other message is served after s; then the last one of
    all others is, and from its end the least time G passes until the last D message of the same microbatch is ready,
    in which at most k - 2 messages are left to serve: the wire idles G - (k - 2) * serialisation. The smaller of the
    two excesses holds; the best k is taken.
    """
    gap, last = most_conflict_ns(problem, paths, classes), classes[-1]
    if not gap:
        return 0
    stages = _twice_visited(problem, last.position)
    best = 0
    for k in range(2, min(MOST_MESSAGES, problem.microbatches) + 1):
        idle = gap - (k - 2) * last.serialisation_ns
        if idle <= best:
            break
        excess = max((_excess_ns(paths, last, k, *pair, idle) for pair in stages), default=0)
        best = max(best, min(idle, excess))
    return best


def _twice_visited(problem: Problem, sender: int) -> list[tuple[int, int]]:
    """Pairs of positions (first, second in backward order) on one stage, both behind the D message of `sender`."""
    seen: dict[int, int] = {}
    pairs = []
    for position in reversed(range(sender)):
        stage, _ = problem.place(position)
        if stage in seen:
            pairs.append((seen[stage], position))
        seen[stage] = position
    return pairs


def _until_ready_ns(problem: Problem, paths: Paths, message: MessageClass, last: MessageClass) -> int:
    """From the end of service of a message to the end of the D that makes the `last` one of the same microbatch."""
    hop = problem.hop(message.kind, message.position)
    latency = hop.latency_ns if hop else 0
    target, maker = message.position + (1 if message.kind == "F" else -1), last.position
    if message.kind == "D":
        return latency + _down_through_ns(paths, target, maker)
    top = max(target, maker)
    up = paths.forward[target] + (paths.up_ns(target, top) + paths.forward[top] if top > target else 0)
    return latency + up + paths.turns_ns()[top] + _down_through_ns(paths, top, maker)


def _down_through_ns(paths: Paths, first: int, last: int) -> int:
    """From the start of D at `first` to the end of D at `last` <= `first`."""
    between = paths.down_ns(first, last) + paths.input_grad[last] if last < first else 0
    return paths.input_grad[first] + between


def _excess_ns(paths: Paths, last: MessageClass, count: int, first: int, second: int, enough: int) -> int:
    """Least time by which the last `count` messages and what follows exceed count * serialisation + after, or `enough`.

    One stage is looked at, with D of message j at its position `first` and later at `second`. D at `first` waits for
    the message, D at `second` for that one; the end follows the j-th D at `second` by its tail and a step for each
    later one. Exact over all ways to merge both sequences, by depth-first search.
    """
    step, d_first, d_second = last.serialisation_ns, paths.input_grad[first], paths.input_grad[second]
    arrival = paths.backward_delay[last.position - 1] - step
    arrival += _down_through_ns(paths, last.position - 1, first) - d_first  # from the end of service to D at `first`
    between = paths.down_ns(first, second)
    base = count * step + last.after_ns
    release = [(j + 1) * step + arrival for j in range(count)]
    after = [
        max(paths.tail[second], paths.backward_base[second] + (count - 1 - j) * paths.backward_step[second])
        for j in range(count)
    ]
    best = base + enough

    def search(i: int, j: int, time: int, ready: tuple[int, ...], end: int) -> None:
        """i, j: D done at `first`, `second`; `ready`: when the next ones at `second` may start; `end` so far."""
        nonlocal best
        waiting = [start + d_second + after[j + k] for k, start in enumerate(ready)]
        coming = [max(time, release[k]) + d_first + between + d_second + after[k] for k in range(i, count)]
        if max([end, *waiting, *coming]) >= best:
            return
        if j == count:
            best = end
            return
        moves = []
        if i < count:
            moves.append((max(time, release[i]), 0))
        if ready:
            moves.append((max(time, ready[0]), 1))
        for start, which in sorted(moves):
            if which == 0:
                search(i + 1, j, start + d_first, (*ready, start + d_first + between), end)
            else:
                done = start + d_second
                search(i, j + 1, done, ready[1:], max(end, done + after[j]))

    search(0, 0, 0, (), base)
    return best - base
