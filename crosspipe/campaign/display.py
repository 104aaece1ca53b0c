"""What a person sees of a campaign: bars in a terminal, plain lines elsewhere, a dry run's graph, closing words.

It listens to the driver and decides nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from crosspipe.campaign.cluster import REPORT, Resources
from crosspipe.campaign.driver import Plan, Summary
from crosspipe.campaign.graph import STAGES, Node
from crosspipe.campaign.tasks import Task
from crosspipe.report.artifacts import does_not_fit
from crosspipe.store.campaign_file import Ending

WORDS = {"links": "profile links", "blocks": "profile blocks", "solve": "solve", "run": "run"}


class Bars:
    """One bar per stage, with what its jobs are doing; for terminals. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<15}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", markup=False),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}
        self._seen: set[str] = set()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, plan: Plan) -> None:
        for stage in STAGES:
            nodes = plan.graph.stage(stage)
            if nodes:
                cached = sum(node.reference in plan.cached for node in nodes)
                note = f"{cached} cached" if cached else ""
                self._bars[stage] = self._progress.add_task(
                    WORDS[stage], total=len(nodes), completed=cached, now=note, start=False
                )

    def ended(self, node: Node, status: Ending, reason: str) -> None:
        self._progress.advance(self._bars[node.request.stage])
        if status != "done":
            self._progress.print(_trouble(node, status, reason))

    def now(self, stage: str, text: str) -> None:
        if stage not in self._seen:
            self._seen.add(stage)
            self._progress.start_task(self._bars[stage])
        self._progress.update(self._bars[stage], now=text[: max(20, self._console.width - 72)])


class Lines:
    """One line per artifact as it ends; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._started_s = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def begin(self, plan: Plan) -> None:
        for node in plan.graph.nodes.values():
            self._totals[node.request.stage] += 1
            self._counts[node.request.stage] += node.reference in plan.cached
        for stage, total in self._totals.items():
            self._say(f"{WORDS[stage]}: {total} wanted, {self._counts[stage]} cached")

    def ended(self, node: Node, status: Ending, reason: str) -> None:
        stage = node.request.stage
        self._counts[stage] += 1
        count = f"{self._counts[stage]}/{self._totals[stage]}"
        self._say(f"{WORDS[stage]} {count}: {_names(node)} {_verdict(node, status, reason)}")

    def now(self, stage: str, text: str) -> None:
        return None

    def _say(self, text: str) -> None:
        line = f"[{time.monotonic() - self._started_s:6.1f} s] {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def listener(console: Console) -> Bars | Lines:
    """Bars in a terminal, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(console)


def show_plan(plan: Plan, tasks: Sequence[Task], console: Console) -> None:
    """The graph of a dry run: artifacts, cached ones, jobs and what they ask for, per stage; then the points."""
    table = Table(title=f"{len(plan.points)} points, store {plan.store.root}", title_justify="left")
    for head in ("stage", "artifacts", "cached", "to make", "jobs", "node-hours at most", "a job asks for"):
        table.add_column(head, justify="left" if head in ("stage", "a job asks for") else "right")
    for stage in STAGES:
        nodes = plan.graph.stage(stage)
        if not nodes:
            continue
        jobs = [task for task in tasks if task.stage == stage]
        cached = sum(node.reference in plan.cached for node in nodes)
        resources = [task.resources for task in jobs]
        hours = sum((r.nodes or 1) * r.minutes / 60 for r in resources)
        counts = (len(nodes), cached, len(nodes) - cached, len(jobs))
        asks = "; ".join(dict.fromkeys(map(_asks, resources)))
        table.add_row(WORDS[stage], *map(str, counts), f"{hours:.1f}", Text(asks))
    config = plan.points[0].config
    if tasks and config.cluster.executor == "slurm":
        last = config.cluster.resources_of(REPORT)
        table.add_row(REPORT, "", "", "", "1", f"{(last.nodes or 1) * last.minutes / 60:.1f}", Text(_asks(last)))
    console.print(table)
    for point in plan.points:
        keys = plan.graph.keys[point.name]
        road = "  ".join(
            f"{stage}/{key[:8]}{' cached' if f'{stage}/{key}' in plan.cached else ''}" for stage, key in keys.items()
        )
        console.print(f"{point.name}: {road}", markup=False, highlight=False, soft_wrap=True)


def _asks(resources: Resources) -> str:
    """The few words of a job's resources that decide when it starts."""
    nodes = f"{resources.nodes} node{'' if resources.nodes == 1 else 's'}"
    gpus = f"{resources.gpus_per_node} GPUs a node" if resources.gpus_per_node else ""
    words = (f"{nodes} for {resources.minutes} min", gpus, resources.partition, resources.constraint)
    return ", ".join(word for word in words if word)


def show_summary(summary: Summary, console: Console) -> None:
    """What failed and what that blocked, one line each, and where the log is."""
    for node, outcome in summary.failures:
        console.print(_trouble(node, outcome.status, outcome.reason), soft_wrap=True)
        if outcome.log and outcome.status == "failed":
            console.print(f"    log: {summary.directory / outcome.log}", markup=False, highlight=False, soft_wrap=True)


def _names(node: Node) -> str:
    return node.points[0] if len(node.points) == 1 else f"for {len(node.points)} points"


def _verdict(node: Node, status: str, reason: str) -> str:
    return "infeasible" if does_not_fit(node.request.stage, status, reason) else status


def _trouble(node: Node, status: str, reason: str) -> Text:
    verdict = _verdict(node, status, reason)
    words = f"{WORDS[node.request.stage]} {verdict}: {_names(node)}: {reason}"
    return Text(words, style="red" if verdict == "failed" else "yellow")
