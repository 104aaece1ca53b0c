"""The schedules on a link that is not our model: real TCP, shaped from outside, with nothing injected.

The link profiler measures the link first and the schedules are planned with what it found, as `experiment=wan` does on
a devcluster. What is then off the prediction is what alpha and beta do not know: slow start, loss, a rate that varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import median

from support.engine_bar import Asked, Group, Measured, Samples, Show
from support.engine_runs import SCHEDULES, STAGES, execute, problem_on
from support.shaped_link import cannot, shaped

from crosspipe.campaign.config import NetworkConfig
from crosspipe.execute import RunConfig
from crosspipe.problem import LinkTable, Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split
from crosspipe.problem.spread import spread
from crosspipe.solver import solve

SECTION = "Shaped TCP"
SHAPE = ("--delay-ms=20", "--jitter-ms=2", "--rate-mbit=100", "--congestion=cubic")
SETTINGS = {
    "no loss": (),
    "0.1 % lost": ("--loss-percent=0.1",),
    "rate ± 30 %": ("--rate-swing=0.3", "--rate-period-s=10"),
}
BLOCK_MS = 40.0
MODEL = ModelConfig(
    vocabulary=256, hidden=256, intermediate=256, heads=4, kv_heads=4, layers=2 * STAGES, sequence=128
)  # messages of 128 KiB
MESSAGE_BYTES = 4 * MODEL.hidden * MODEL.sequence
SIZES = (1024, MESSAGE_BYTES, 2 * MESSAGE_BYTES)  # that the profiler measures
BUDGET_S, SEARCH_S = 6.0, 6.0
LAYERS: dict[str, Split] = {"ud": ((2,),) * STAGES, "wave": ((1, 1),) * STAGES}
POST_AHEAD_MS = 60.0  # a receive is known at the other end a latency after it was posted
ROUNDS = 2  # of all schedules in turn, three measured iterations each: six samples have an interval
FALL, FALLS_AT = ("100", "15"), 10  # Mbit/s before and after; iteration
LONGER = 1.05  # a plan for the slower link is predicted to take more than this times what the first was
CLOSE = 0.01  # schedules predicted to be closer than this may come in any order


def wan_groups(*, quick: bool) -> list[Group]:
    """A group per setting of the link."""
    settings = dict(list(SETTINGS.items())[:1]) if quick else SETTINGS
    schedules = {"ud": ("zbh1", "cross_ud")} if quick else SCHEDULES
    groups = [
        Group(_asked(name, schedules), partial(_measure, name, options, schedules, quick), cannot)
        for name, options in settings.items()
    ]
    return groups if quick else [*groups, Group(FALLEN, _fall, cannot)]


_FALLING = f"rate falls from {FALL[0]} to {FALL[1]} Mbit/s in the run"
FALLEN = tuple(
    Asked(SECTION, f"{_FALLING}: {what}", unit)
    for what, unit in (
        ("makespan with the old plan, over before", "%"),
        ("makespan with the new plan, gain over the old", "%"),
        ("iterations until the new plan", "iterations"),
    )
)


def _asked(setting: str, schedules: Mapping[str, Sequence[str]]) -> tuple[Asked, ...]:
    names = [name for some in schedules.values() for name in some]
    return (
        Asked(SECTION, f"{setting}: a message across, measured before", "ms"),
        *(Asked(SECTION, f"{setting}: {name}, off the prediction", "%") for name in names),
        *(
            Asked(SECTION, f"{setting}: {name}, gain{what}", "%")
            for name in filter(_searched, names)
            for what in ("", " as predicted")
        ),
        Asked(SECTION, f"{setting}: iterations in the predicted order of the schedules", "%", aim=100, least=True),
    )


def _searched(name: str) -> bool:
    return name.startswith("cross")


def _measure(
    setting: str, options: Sequence[str], schedules: Mapping[str, Sequence[str]], quick: bool, show: Show
) -> Samples:
    run = RunConfig(pace=1.0, iterations=3, warmup=1, timeout_s=30, check_gradients=False, post_ahead_ms=POST_AHEAD_MS)
    with shaped(*SHAPE, *options) as link:
        show("measuring the link")
        table = link.measure(SIZES, budget_s=BUDGET_S)
        problems = {traversal: _problem(traversal, table) for traversal in schedules}
        show("planning")
        plans = {
            traversal: {name: solve(problems[traversal], name, time_limit_s=2 if quick else SEARCH_S) for name in names}
            for traversal, names in schedules.items()
        }
        predicted: dict[str, int] = {}
        measured: dict[str, list[int]] = {name: [] for names in schedules.values() for name in names}
        for number in range(1 if quick else ROUNDS):
            show(f"running, round {number + 1}")
            for traversal in sorted(plans, reverse=number % 2 == 1):
                turns = dict(sorted(plans[traversal].items(), reverse=number % 2 == 1))
                records = execute(
                    turns, problems[traversal], run, MODEL, LAYERS[traversal], origin="shaped TCP", launch=link.launch
                )
                for name, record in records.items():
                    predicted[name] = record.predicted_makespan_ns
                    measured[name] += [i.makespan_ns for i in record.measured]
    site = table.site_of_rank
    return {
        f"{setting}: a message across, measured before": [
            one.value_at(MESSAGE_BYTES)[0] / 1e6 for one in table.links if site[one.source] != site[one.target]
        ],
        **compared(setting, predicted, measured),
    }


def _fall(show: Show) -> Samples:
    """One run of cross_ud on a link that gets slower under way."""
    run = RunConfig(
        pace=1.0, iterations=30, warmup=2, timeout_s=30, check_gradients=False, post_ahead_ms=POST_AHEAD_MS,
        replan_above=0.3,
    )  # fmt: skip
    fell: list[int] = []

    with shaped(*SHAPE, "--queue-ms=400") as link:

        def watch(label: str, iteration: int, total: int) -> None:
            show(f"iteration {iteration} of {total}")
            if iteration >= FALLS_AT and not fell:
                fell.append(iteration)
                link.change(f"--rate-mbit={FALL[1]}")

        show("measuring the link")
        problem = _problem("ud", link.measure(SIZES, budget_s=BUDGET_S))
        schedules = {"cross_ud": solve(problem, "cross_ud", time_limit_s=SEARCH_S)}
        record = execute(
            schedules, problem, run, MODEL, LAYERS["ud"], origin="shaped TCP", launch=link.launch, on_progress=watch
        )["cross_ud"]
    long_ns = LONGER * record.predicted_makespan_ns
    later = [swap for swap in record.swaps if swap.refused is None and swap.iteration > fell[0]]
    taken = [swap.iteration for swap in later if swap.predicted_makespan_ns > long_ns]
    swapped = taken[0] if taken else run.warmup + run.iterations
    before = median(i.makespan_ns for i in record.measured if fell[0] - 4 <= i.index < fell[0])
    old = [i.makespan_ns for i in record.measured if fell[0] < i.index < swapped]
    new = [i.makespan_ns for i in record.measured if i.index >= swapped]
    never = Measured(spread([0.0]), "no swap")
    samples = (
        [100 * (span / before - 1) for span in old] or never,
        [100 * (1 - span / median(old)) for span in new] if old and new else never,
        [float(swapped - fell[0])] if taken else never,
    )
    return {one.key: values for one, values in zip(FALLEN, samples, strict=True)}


def _problem(traversal: str, table: LinkTable) -> Problem:
    """Blocks of BLOCK_MS on links as measured."""
    measured = NetworkConfig(kind="measured")
    return problem_on(table, traversal, LAYERS[traversal], MODEL, BLOCK_MS, MESSAGE_BYTES, measured)


def compared(
    setting: str, predicted: Mapping[str, int], measured: Mapping[str, Sequence[int]]
) -> dict[str, list[float]]:
    """Every schedule with its prediction, the searched ones with the static one that was fastest, and all in order.

    Makespans in ns; those at one place of their lists were measured in the same round.
    """
    found = {
        f"{setting}: {name}, off the prediction": [100 * (span / predicted[name] - 1) for span in spans]
        for name, spans in measured.items()
    }
    best = min((name for name in measured if not _searched(name)), key=lambda name: median(measured[name]))
    for name in filter(_searched, measured):
        pairs = zip(measured[name], measured[best], strict=True)
        found[f"{setting}: {name}, gain"] = [100 * (1 - ours / theirs) for ours, theirs in pairs]
        found[f"{setting}: {name}, gain as predicted"] = [100 * (1 - predicted[name] / predicted[best])]
    rounds = [dict(zip(measured, spans, strict=True)) for spans in zip(*measured.values(), strict=True)]
    kept = sum(_in_order(predicted, spans) for spans in rounds)
    found[f"{setting}: iterations in the predicted order of the schedules"] = [100 * kept / len(rounds)]
    return found


def _in_order(predicted: Mapping[str, int], measured: Mapping[str, int]) -> bool:
    return all(
        (predicted[a] < predicted[b]) == (measured[a] < measured[b])
        for a, b in combinations(predicted, 2)
        if abs(predicted[a] / predicted[b] - 1) > CLOSE
    )
