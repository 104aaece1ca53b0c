"""Which messages a wire serves: per wire the classes of messages of one kind from one position, with least times."""

from __future__ import annotations

from typing import NamedTuple

from crosspipe.problem import Problem
from crosspipe.solver.bounds.paths import Paths


class MessageClass(NamedTuple):
    """Messages of one kind from one position: how many, when the first can be ready, what each occupies the wire for,
    and how long after the end of service everything that must follow takes; times in ns."""

    kind: str
    position: int
    messages: int
    ready_ns: int
    serialisation_ns: int
    after_ns: int


def message_classes(problem: Problem, paths: Paths) -> dict[str, list[MessageClass]]:
    """Per wire the classes of messages it serves."""
    classes: dict[str, list[MessageClass]] = {wire: [] for wire in problem.wires}
    n, last = problem.microbatches, paths.positions - 1
    first_gradient = [0] * paths.positions  # earliest start of a D
    turns = paths.turns_ns()
    for p in range(paths.positions):
        first_gradient[p] = paths.head[p] + paths.forward[p] + turns[p]
    for p in range(paths.positions):
        forward_after = paths.forward[p] + turns[p] + paths.input_grad[p] + paths.tail[p]  # from an arrival at p
        if p > 0 and (wire := problem.forward_hops[p - 1].wire) is not None:
            hop = problem.forward_hops[p - 1]
            ready = paths.head[p - 1] + paths.forward[p - 1]
            after = hop.latency_ns + forward_after
            classes[wire].append(MessageClass("F", p - 1, n, ready, hop.serialisation_ns, after))
        if p < last and (wire := problem.backward_hops[p].wire) is not None:
            hop = problem.backward_hops[p]
            ready = first_gradient[p + 1] + paths.input_grad[p + 1]
            after = hop.latency_ns + paths.input_grad[p] + paths.tail[p]
            classes[wire].append(MessageClass("D", p + 1, n, ready, hop.serialisation_ns, after))
        if not problem.data_parallel:
            continue
        stage, chunk = problem.place(p)
        gather, reduce = problem.data_parallel[stage][chunk].gather, problem.data_parallel[stage][chunk].reduce
        if gather is not None and gather.wire is not None:
            after = gather.latency_ns + forward_after
            classes[gather.wire].append(MessageClass("gather", p, 1, 0, gather.serialisation_ns, after))
        if reduce.wire is not None:
            gradients = n * (paths.input_grad[p] + paths.weight_grad[p])
            ready = max(first_gradient[p], paths.head[p] + n * paths.forward[p]) + gradients
            after = reduce.latency_ns
            classes[reduce.wire].append(MessageClass("reduce", p, 1, ready, reduce.serialisation_ns, after))
    return classes
