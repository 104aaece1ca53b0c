"""`crosspipe advise`: what to run, how long it would take, why, which single change helps most; tables that teach.

A problem file fixes layout and batch; with overrides, as of `crosspipe run`, the split into pipeline and data
parallelism is tried too, at the same devices and the same global batch. The judging is `crosspipe.solver.advice`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from crosspipe.cli.console import console
from crosspipe.errors import CrosspipeError, FieldError, UsageError
from crosspipe.problem import Problem
from crosspipe.problem.traversal import place_of
from crosspipe.report.wording import number
from crosspipe.store import load

if TYPE_CHECKING:
    from rich.console import Console

    from crosspipe.campaign.config import PointConfig
    from crosspipe.solver.advice import Change, Choice

CHUNKS = {"ud": 1, "wave": 2}  # of the traversals that are judged
MIB = 2**20


class Layout(NamedTuple):
    """One way to use the same devices: stages times replicas, and its problems by traversal."""

    stages: int
    replicas: int
    parameter_bytes: int  # of the fullest stage
    problems: dict[str, Problem]


def advise(options: Namespace) -> int:
    """`crosspipe advise PROBLEM.json` or `crosspipe advise OVERRIDE ...`."""
    from crosspipe.solver import advice

    asked, *rest = layouts(options.what)
    out = console()
    with console(stderr=True).status("looking") as status:

        def say(words: str) -> None:
            status.update(f"trying {words}")

        limits: dict[str, Any] = {"time_limit_s": options.time_limit, "workers": options.workers, "say": say}
        found = advice.choices(asked.problems, **limits)
        best = next((choice for choice in found if choice.schedule is not None), None)
        if best is None:
            raise CrosspipeError(f"no schedule fits: {found[0].refused}")
        out.print(_asked(asked, best.problem))
        out.print(_schedules(found))
        static = next((choice for choice in found if choice.schedule is not None and choice.static), None)
        _explain(out, best, static)
        out.print(_tolerance({c.name for c in (best, static) if c is not None}, found))
        if rest:
            out.print(_layouts([(layout, _fastest(layout, limits)) for layout in (asked, *rest)], best))
        tried = advice.changes(best, **limits)
        out.print(_changes(tried, best))
        _conclude(out, tried, best, static)
    return 0


def layouts(what: Sequence[str]) -> list[Layout]:
    """The layout asked about, and with overrides every other one of the same devices and global batch."""
    if len(what) == 1 and what[0].endswith(".json") and "=" not in what[0]:
        from crosspipe.solver.advice import with_traversal

        problem = load(Path(what[0]), Problem)
        others = {t: p for t in CHUNKS if (p := with_traversal(problem, t)) is not None}
        return [Layout(problem.stages, 1, 0, others or {problem.traversal: problem})]
    from crosspipe.campaign.config import typed
    from crosspipe.campaign.hydra_app import compose_and_launch

    composed: list[dict[str, Any]] = []
    compose_and_launch(what, lambda configs, _: composed.extend(configs))
    if len(composed) != 1:
        raise UsageError("advise", " ".join(what), f"these are {len(composed)} points", "ask about one at a time")
    config = typed(composed[0])
    if config.costs.measured:
        raise UsageError(
            "costs", "measured", "advice needs block times before anything has run",
            "use costs=analytic (model and device rate) or another of conf/costs, "
            "or give a PROBLEM.json: every solved point has one in the store, solve/KEY/problem.json",
        )  # fmt: skip
    return list(_same_devices(config))


def _same_devices(config: PointConfig) -> Iterator[Layout]:
    """The layout of `config` first; then all others that its devices, batch, sites and layers allow."""
    pipeline = config.pipeline
    groups, batch = pipeline.stages * pipeline.replicas, pipeline.microbatches * pipeline.replicas
    first = _layout(config)
    yield first
    config = _with_given_link(config, next(iter(first.problems.values())))
    limit = next(iter(first.problems.values())).activation_limit_bytes[0]
    for stages in range(pipeline.sites, groups + 1, pipeline.sites):
        replicas = groups // stages
        if groups % stages or batch % replicas or stages == pipeline.stages:
            continue
        changed = msgspec.structs.replace(
            pipeline, stages=stages, replicas=replicas, microbatches=batch // replicas, layers=None,
            zero1=pipeline.zero1 and replicas > 1, memory_microbatches=None,
            memory_mib=None if limit is None else limit / MIB,
        )  # fmt: skip
        try:
            yield _layout(msgspec.structs.replace(config, pipeline=changed))
        except FieldError:  # its layers do not fit so many stages
            continue


def _with_given_link(config: PointConfig, problem: Problem) -> PointConfig:
    """`config` with its link in ms and Gbit/s: ratios of T_F would be another link in every other layout."""
    ratios = config.network.ratios()
    crossing = [k for k in range(problem.positions - 1) if problem.crosses_sites("F", k)]
    if ratios is None or not crossing:
        return config
    reference_ns, (latency, wire) = problem.forward_reference_ns(), ratios
    cost = [
        problem.costs[s][c]
        for s, c in (place_of(problem.traversal, problem.stages, k) for k in range(problem.positions))
    ]
    largest = max(max(cost[k].forward_message_bytes, cost[k + 1].backward_message_bytes) for k in crossing)
    bytes_of_all = config.pipeline.replicas * largest
    serialisation_ns = wire * reference_ns
    link = msgspec.structs.replace(
        config.network, delay=None, latency_ratio=None, bandwidth_ratio=None, latency_ms=latency * reference_ns / 1e6,
        bandwidth_gbit_per_s=8 * bytes_of_all / serialisation_ns if serialisation_ns and bytes_of_all else None,
    )  # fmt: skip
    return msgspec.structs.replace(config, network=link)


def _layout(config: PointConfig) -> Layout:
    from crosspipe.campaign.costs import make_costs
    from crosspipe.campaign.problems import build_problem
    from crosspipe.problem.layers import split_model

    pipeline, problems, parameters, wrong = config.pipeline, dict[str, Problem](), 0, None
    for traversal in CHUNKS:
        try:
            split = split_model(
                config.model, pipeline.stages, CHUNKS[traversal], traversal=traversal, explicit=pipeline.layers
            )
        except FieldError as error:
            wrong = error
            continue  # too few layers for two chunks a stage, or layers given for one
        costs = make_costs(config.costs, config.model, traversal, split)
        parameters = max(costs.parameter_bytes, default=0)
        problems[traversal] = build_problem(costs, None, network=config.network, pipeline=pipeline, pace=None)
    if not problems and wrong is not None:
        raise wrong
    return Layout(pipeline.stages, pipeline.replicas, parameters, problems)


def _fastest(layout: Layout, limits: dict[str, Any]) -> Choice | None:
    from crosspipe.solver import advice

    found = advice.choices(layout.problems, **limits)
    return next((choice for choice in found if choice.schedule is not None), None)


def _asked(layout: Layout, problem: Problem) -> Text:
    hops = [problem.forward_hops[k] for k in range(problem.positions - 1) if problem.crosses_sites("F", k)]
    reference = problem.forward_reference_ns()
    link = "nothing crosses sites"
    if hops:
        latency, wire = max(hop.latency_ns for hop in hops), max(hop.serialisation_ns for hop in hops)
        link = f"a message across sites takes {_ms(latency)} + {_ms(wire)} on the wire"
        link += f" ({latency / reference:.2g} + {wire / reference:.2g} T_F)" if reference else ""
    limit = problem.activation_limit_bytes[0]
    held = "no memory limit" if limit is None else f"a stage may hold {number(limit / MIB)} MiB of activations"
    replicas = f" × {layout.replicas} replicas" if layout.replicas > 1 else ""
    return Text(
        f"{problem.stages} stages{replicas} on {len(set(problem.sites))} sites, {problem.microbatches} microbatches, "
        f"T_F {_ms(reference)}; {link}; {held}. All times are simulated makespans.\n"
    )


def _schedules(found: Sequence[Choice]) -> Table:
    table = Table(title="Schedules, the fastest first", title_justify="left")
    for head in ("schedule", "traversal", "makespan", "gap at most", "peak MiB", "site crossings"):
        table.add_column(head, justify="left" if head in ("schedule", "traversal") else "right")
    for choice in found:
        name = choice.name + (" (static)" if choice.static else "")
        if choice.schedule is None:
            table.add_row(name, choice.problem.traversal, Text("does not fit", style="yellow"))
            continue
        gap = choice.makespan_ns / choice.lower_bound_ns - 1 if choice.lower_bound_ns else 0.0
        table.add_row(
            name, choice.problem.traversal, _ms(choice.makespan_ns), "optimal" if gap == 0 else f"{gap:.2%}",
            number(choice.peak_bytes / MIB), str(choice.crossings),
        )  # fmt: skip
    return table


def _explain(out: Console, best: Choice, static: Choice | None) -> None:
    assert best.schedule is not None
    against = ""
    if static is not None and static.name != best.name:
        against = f", {1 - best.makespan_ns / static.makespan_ns:.1%} less than {static.name}, the best static schedule"
        if static.crossings > best.crossings:
            against += (
                f", which waits for the link {static.crossings} times in a row where this one does {best.crossings}"
            )
    out.print(Text(f"Run {best.name}: {_ms(best.makespan_ns)}{against}.", style="bold"), soft_wrap=True)
    if best.schedule.certificate is not None:
        out.print(Text(f"Why not less: {best.schedule.certificate.explanation}.\n"), soft_wrap=True)


def _tolerance(names: Collection[str], found: Sequence[Choice]) -> Table:
    from crosspipe.solver.advice import tolerance_ns

    table = Table(title="Latency tolerance: how much longer the link may take, the order kept", title_justify="left")
    table.add_column("schedule")
    table.add_column("for 1 % more time", justify="right")
    table.add_column("for 5 % more time", justify="right")
    for choice in (c for c in found if c.name in names and c.schedule is not None):
        cells = (tolerance_ns(choice, growth) for growth in (0.01, 0.05))
        table.add_row(choice.name, *("any" if more is None else f"+{_ms(more)}" for more in cells))
    return table


def _layouts(judged: Sequence[tuple[Layout, Choice | None]], asked: Choice) -> Table:
    table = Table(
        title="Pipeline × data parallelism on the same devices, same global batch and activation memory\n"
        "(a ring all-reduce inside a site is not in it: no link inside a site is known)",
        title_justify="left",
    )
    for head in ("stages × replicas", "microbatches", "best schedule", "makespan", "against asked", "parameters GiB"):
        table.add_column(head, justify="left" if head in ("stages × replicas", "best schedule") else "right")
    timed = [pair for pair in judged if pair[1] is not None]
    for layout, choice in sorted(timed, key=lambda pair: pair[1].makespan_ns if pair[1] else 0):
        assert choice is not None
        table.add_row(
            f"{layout.stages} × {layout.replicas}", str(choice.problem.microbatches), choice.name,
            _ms(choice.makespan_ns), _against(choice.makespan_ns, asked.makespan_ns),
            f"{layout.parameter_bytes / 2**30:.3g}" if layout.parameter_bytes else "unknown",
        )  # fmt: skip
    for layout, choice in judged:
        if choice is None:
            table.add_row(f"{layout.stages} × {layout.replicas}", "", "none fits the memory")
    return table


def _changes(tried: Sequence[Change], best: Choice) -> Table:
    table = Table(title="One thing changed, the most helpful first", title_justify="left")
    table.add_column("change")
    table.add_column("then run")
    table.add_column("per microbatch", justify="right")
    table.add_column("against now", justify="right")
    for change in tried:
        if change.choice is None:
            table.add_row(change.words, "none fits the memory")
            continue
        now = change.choice.per_microbatch_ns
        table.add_row(change.words, change.choice.name, _ms(now), _against(now, best.per_microbatch_ns))
    table.add_row("nothing", best.name, _ms(best.per_microbatch_ns), "", style="dim")
    return table


def _conclude(out: Console, tried: Sequence[Change], best: Choice, static: Choice | None) -> None:
    first = next((change for change in tried if change.choice is not None), None)
    saved = (
        0.0 if first is None or first.choice is None else 1 - first.choice.per_microbatch_ns / best.per_microbatch_ns
    )
    if first is None or saved < 0.005:
        out.print(Text("No single change helps by more than half a percent.", style="bold"))
    else:
        out.print(
            Text(f"What helps most: {first.words} saves {saved:.1%} per microbatch.", style="bold"), soft_wrap=True
        )


def _against(value: float, reference: float) -> str:
    """The difference in percent of the reference; "same" below what the digits show."""
    share = value / reference - 1
    return "same" if abs(share) < 0.0005 else f"{share:+.1%}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.4g} ms" if ns < 10e9 else f"{ns / 1e9:.4g} s"
