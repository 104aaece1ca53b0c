"""What a bound may assume of a Problem: shortest block times, least times between two events of a microbatch.

Not a bound itself. A fused B is covered by shortening: inside any B of `backward_ns` there is room for a D of
min(D, B) followed by a W of min(W, B - D), so every valid schedule, with B or without, is also a valid timing of the
problem whose D and W have those lengths and which has no B. All bounds are proved on that problem.
"""

from __future__ import annotations

import msgspec

from crosspipe.problem import Problem
from crosspipe.solver.bounds.knapsack import served_ns


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Least times of a Problem in ns; every tuple is indexed by position 0 .. P - 1.

    `forward`, `input_grad`, `weight_grad`: block times that hold with and without fused B. `forward_delay[p]` is the
    delay of the message from p to p + 1, `backward_delay[p]` from p + 1 to p (P - 1 of each). `head[p]`: the earliest
    start of an F at p. `tail[p]`: from the end of a D at p to the end of all that must follow it (its W, the D and W
    of the positions before it, gradient reductions). `gather[p]` and `reduce[p]`: delay of the DP messages, 0 without.
    `forward_step[p]`: F of the k-th microbatch at p starts no earlier than `forward_base[p]` + k steps, as all before
    it on the way, blocks and wires, serve one at a time; the base is the head but for gathers on the way, behind which
    F queue up and then follow faster. `backward_step[p]`: D of the k-th last ends `backward_base[p]` + k steps before
    the end; the base is the tail but for what follows on its own stage, its W and the reduction.
    """

    forward: tuple[int, ...]
    input_grad: tuple[int, ...]
    weight_grad: tuple[int, ...]
    forward_delay: tuple[int, ...]
    backward_delay: tuple[int, ...]
    gather: tuple[int, ...]
    reduce: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    forward_base: tuple[int, ...]
    forward_step: tuple[int, ...]
    backward_base: tuple[int, ...]
    backward_step: tuple[int, ...]

    @property
    def positions(self) -> int:
        return len(self.forward)

    @property
    def gradient_head(self) -> list[int]:
        """Per position, the earliest start of a D there."""
        return [h + f + t for h, f, t in zip(self.head, self.forward, self.turns_ns(), strict=True)]

    def forward_by_ns(self, position: int, by_ns: int, most: int) -> int:
        """Most work that F at a position can have done by a time, in at most `most` blocks."""
        size = self.forward[position]
        return min(
            served_ns(by_ns, self.head[position], 0, size, most),
            served_ns(by_ns, self.forward_base[position], self.forward_step[position], size, most),
        )

    def input_grad_within_ns(self, position: int, within_ns: int, most: int) -> int:
        """Most work that D at a position can do in the last `within_ns` of a schedule, in at most `most` blocks."""
        size = self.input_grad[position]
        return min(
            served_ns(within_ns, self.tail[position], 0, size, most),
            served_ns(within_ns, self.backward_base[position], self.backward_step[position], size, most),
        )

    def up_ns(self, first: int, last: int) -> int:
        """From the end of F at position `first` to the earliest start of F at `last` > `first`, same microbatch."""
        return sum(self.forward_delay[first:last]) + sum(self.forward[first + 1 : last])

    def down_ns(self, first: int, last: int) -> int:
        """From the end of D at position `first` to the earliest start of D at `last` < `first`, same microbatch."""
        return sum(self.backward_delay[last:first]) + sum(self.input_grad[last + 1 : first])

    def turns_ns(self) -> list[int]:
        """Per position, from the end of F there to the earliest start of D there: all the way and back."""
        turns = [0] * self.positions
        for p in reversed(range(self.positions - 1)):
            there_and_back = self.forward[p + 1] + turns[p + 1] + self.input_grad[p + 1]
            turns[p] = self.forward_delay[p] + there_and_back + self.backward_delay[p]
        return turns


def paths_of(problem: Problem) -> Paths:
    """The `Paths` of a problem, in O(positions)."""
    forward, input_grad, weight_grad, gather, reduce = [], [], [], [], []
    for position in range(problem.positions):
        stage, chunk = problem.place(position)
        cost = problem.costs[stage][chunk]
        shortest = min(cost.input_grad_ns, cost.backward_ns)
        forward.append(cost.forward_ns)
        input_grad.append(shortest)
        weight_grad.append(min(cost.weight_grad_ns, cost.backward_ns - shortest))
        parallel = problem.data_parallel[stage][chunk] if problem.data_parallel else None
        gather.append(parallel.gather.delay_ns if parallel and parallel.gather else 0)
        reduce.append(parallel.reduce.delay_ns if parallel else 0)
    forward_delay = [hop.delay_ns for hop in problem.forward_hops]
    backward_delay = [hop.delay_ns for hop in problem.backward_hops]
    head: list[int] = []
    tail: list[int] = []
    forward_base: list[int] = []
    forward_step: list[int] = []
    backward_base: list[int] = []
    backward_step: list[int] = []
    for position in range(problem.positions):
        arrival = head[-1] + forward[position - 1] + forward_delay[position - 1] if position else 0
        head.append(max(arrival, gather[position]))
        own = weight_grad[position] + reduce[position]
        further = backward_delay[position - 1] + input_grad[position - 1] + tail[-1] if position else 0
        tail.append(max(own, further))
        way = forward[position - 1] + forward_delay[position - 1] if position else gather[0]
        forward_base.append(way + (forward_base[-1] if position else 0))
        way = backward_delay[position - 1] + input_grad[position - 1] if position else own
        backward_base.append(way + (backward_base[-1] if position else 0))
        for steps, block, hops in (
            (forward_step, forward, problem.forward_hops),
            (backward_step, input_grad, problem.backward_hops),
        ):
            hop = hops[position - 1] if position else None
            serial = hop.serialisation_ns if hop and hop.wire is not None else 0
            steps.append(max(steps[-1], block[position - 1], serial) if position else 0)
    return Paths(
        forward=tuple(forward),
        input_grad=tuple(input_grad),
        weight_grad=tuple(weight_grad),
        forward_delay=tuple(forward_delay),
        backward_delay=tuple(backward_delay),
        gather=tuple(gather),
        reduce=tuple(reduce),
        head=tuple(head),
        tail=tuple(tail),
        forward_base=tuple(forward_base),
        forward_step=tuple(forward_step),
        backward_base=tuple(backward_base),
        backward_step=tuple(backward_step),
    )
