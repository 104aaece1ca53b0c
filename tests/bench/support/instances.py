"""The problems of the bar: families of instances, each over five pairs of delays, at the M70 model's block times.

Block times are what CrossPipe's Table 5 (Chen et al., ATC'25) implies for M70 on 8 stages: F 38, D 46, W 21 ms a stage;
F keeps a microbatch's activations, D and W release half each. Limits are in microbatches of activations, per stage.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from crosspipe.problem import BlockCost, Hop, Problem
from crosspipe.problem.problem import MICROBATCH_UNITS, wire_name

FORWARD_MS, INPUT_GRAD_MS, WEIGHT_GRAD_MS = 38, 46, 21
DELAYS = ((0, 0), (0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))  # (T_lat, T_bw) / T_F
INPUTS_KEPT = 162  # a stage of 8 layers of M70 keeps 162 times its input, by crosspipe.problem.analytic
RANDOM_PROBLEMS = 200
FULL_LIMIT_S = 60.0  # what the bar gives a search
REPORTED_LIMIT_S = 10.0  # for a search that is only reported, or only asked for its first schedule


class Family(NamedTuple):
    """Instances that share a size and a bar; `time_limit_s` for a search, less for the `reported` traversals."""

    name: str
    stages: int
    microbatches: int
    limit: float
    traversals: tuple[str, ...]
    sites: int = 2
    recompute: bool = False
    time_limit_s: float = FULL_LIMIT_S
    reported: tuple[str, ...] = ()
    note: str = ""

    def limit_s(self, traversal: str) -> float:
        return REPORTED_LIMIT_S if traversal in self.reported else self.time_limit_s


class Instance(NamedTuple):
    """One problem with the schedule to search on it."""

    family: str
    traversal: str
    label: str
    problem: Problem
    time_limit_s: float

    @property
    def key(self) -> str:
        return f"{self.family}: {self.traversal} {self.label}"

    @property
    def schedule(self) -> str:
        return f"cross_{self.traversal}"


UNIFORM = (
    Family("4x8, limit 4", 4, 8, 4, ("ud", "wave", "loop"), reported=("loop",)),
    Family("8x16, limit 8", 8, 16, 8, ("ud", "wave", "loop"), reported=("loop",), note="Table 5, case 1"),
    Family("8x32, limit 16", 8, 32, 16, ("ud", "wave"), note="Table 5, case 3"),
    Family("8x32, limit 8", 8, 32, 8, ("ud", "wave")),
    Family("8x32, limit 8, recomputation", 8, 32, 8, ("ud", "wave"), recompute=True, note="Table 5, case 2"),
    Family("16x32, limit 16", 16, 32, 16, ("ud", "wave")),
    Family("32x64, limit 32", 32, 64, 32, ("ud", "wave"), reported=("wave",)),
    Family("64x128, limit 64", 64, 128, 64, ("ud", "wave"), reported=("wave",)),
    Family(
        "four sites, 8x16, limit 8", 8, 16, 8, ("ud", "wave"), sites=4, reported=("ud", "wave"),
        note="Table 6, case 1",
    ),
    Family(
        "four sites, 8x32, limit 8, recomputation", 8, 32, 8, ("ud", "wave"), sites=4, recompute=True,
        reported=("ud", "wave"), note="Table 6, case 2",
    ),
    Family(
        "four sites, 8x32, limit 16", 8, 32, 16, ("ud", "wave"), sites=4, reported=("ud", "wave"),
        note="Table 6, case 3",
    ),
)  # fmt: skip
RANDOM = Family("random 4x8", 4, 8, 0, ("ud",), time_limit_s=6.0)


def uniform(family: Family, traversal: str, delays: tuple[float, float], *, microbatches: int | None = None) -> Problem:
    """The family's problem at `delays`, (latency, serialisation of one message) over T_F."""
    problem = Problem.uniform(
        traversal=traversal,
        stages=family.stages,
        microbatches=family.microbatches if microbatches is None else microbatches,
        sites=family.sites,
        forward_ms=FORWARD_MS,
        input_grad_ms=INPUT_GRAD_MS,
        weight_grad_ms=WEIGHT_GRAD_MS,
        latency_ms=delays[0] * FORWARD_MS,
        serialisation_ms=delays[1] * FORWARD_MS,
        memory_microbatches=family.limit,
    )
    if not family.recompute:
        return problem
    costs = tuple(tuple(cost.recomputed(MICROBATCH_UNITS // INPUTS_KEPT) for cost in row) for row in problem.costs)
    return msgspec.structs.replace(problem, costs=costs)


def random_ud(number: int) -> Problem:
    """Heterogeneous 4 x 8: every stage its own block times (W may exceed D), memory split and limit of 2 to 8
    microbatches; two or four sites; every boundary between them its own latency and serialisation up to 2 T_F."""
    rng = random.Random(number)
    stages, microbatches = 4, 8

    def time_ns(low_ms: float, high_ms: float) -> int:
        return 100_000 * rng.randint(round(10 * low_ms), round(10 * high_ms))

    def cost() -> BlockCost:
        by_input_grad = rng.randint(0, MICROBATCH_UNITS)
        return BlockCost(
            forward_ns=time_ns(20, 60),
            input_grad_ns=time_ns(20, 70),
            weight_grad_ns=time_ns(5, 80),
            forward_keep_bytes=MICROBATCH_UNITS,
            input_grad_release_bytes=by_input_grad,
            weight_grad_release_bytes=MICROBATCH_UNITS - by_input_grad,
        )

    costs = tuple((cost(),) for _ in range(stages))
    sites = rng.choice(((0, 0, 1, 1), (0, 1, 2, 3)))
    longest_ms = 2 * max(row[0].forward_ns for row in costs) / 1e6

    def hop(here: int, there: int) -> Hop:
        if sites[here] == sites[there]:
            return Hop()
        wire = wire_name(sites[here], sites[there])
        return Hop(latency_ns=time_ns(0, longest_ms), serialisation_ns=time_ns(0, longest_ms), wire=wire)

    return Problem(
        traversal="ud",
        stages=stages,
        microbatches=microbatches,
        costs=costs,
        forward_hops=tuple(hop(s, s + 1) for s in range(stages - 1)),
        backward_hops=tuple(hop(s + 1, s) for s in range(stages - 1)),
        activation_limit_bytes=tuple(rng.randint(2, 8) * MICROBATCH_UNITS for _ in range(stages)),
        sites=sites,
    )


def label(delays: tuple[float, float]) -> str:
    return f"({delays[0]:g}, {delays[1]:g})"


def all_instances() -> Iterator[Instance]:
    """Every instance of the bar, the quickest families first."""
    for family in UNIFORM:
        for traversal in family.traversals:
            for delays in DELAYS:
                problem = uniform(family, traversal, delays)
                yield Instance(family.name, traversal, label(delays), problem, family.limit_s(traversal))
    for number in range(RANDOM_PROBLEMS):
        yield Instance(RANDOM.name, "ud", f"{number:03d}", random_ud(number), RANDOM.time_limit_s)


def quick_instances() -> Iterator[Instance]:
    """A few of the small ones: enough to see that everything works."""
    for instance in all_instances():
        small = instance.family in ("4x8, limit 4", "8x16, limit 8") and instance.label in ("(0.25, 0.25)", "(2, 2)")
        if small or (instance.family == RANDOM.name and int(instance.label) < 5):
            yield instance._replace(time_limit_s=2.0)
