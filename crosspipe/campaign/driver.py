"""The driver: plans a campaign, submits what the store lacks, follows it, and ends with the report.

It keeps nothing in memory that matters: killed at any moment and started again, it finds in the store what is done, in
the claims what others are making, and goes on with the rest.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import crosspipe
from crosspipe.campaign import outcomes
from crosspipe.campaign.executors import Executor, Job, make_executor
from crosspipe.campaign.graph import NOT_OF_THE_RESULT, Graph, Node, build_graph
from crosspipe.campaign.points import Point
from crosspipe.campaign.status import DRIVER
from crosspipe.campaign.tasks import BODIES, Task, pack
from crosspipe.store import Request, Store, my_claim, save
from crosspipe.store.campaign_file import CAMPAIGN_FILE, CampaignFile, CampaignPoint, Ending, Outcome
from crosspipe.store.upkeep import enter_campaign

_POLL_S = 0.2


class Plan(NamedTuple):
    """A campaign, planned: nothing has been written or started yet."""

    points: tuple[Point, ...]
    store: Store
    graph: Graph
    cached: frozenset[str]  # references the store already has

    @property
    def missing(self) -> tuple[str, ...]:
        """What is still to be made, in the graph's order."""
        return tuple(reference for reference in self.graph.nodes if reference not in self.cached)


class Listener(Protocol):
    """Hears how a campaign goes; `crosspipe.campaign.display` shows it."""

    def begin(self, plan: Plan, tasks: Sequence[Task]) -> None: ...

    def ended(self, node: Node, status: Ending, reason: str) -> None: ...

    def now(self, stage: str, text: str) -> None: ...


class Summary(NamedTuple):
    """How a campaign ended: per node its status and reason."""

    plan: Plan
    directory: Path
    outcomes: dict[str, Outcome]

    @property
    def failures(self) -> list[tuple[Node, Outcome]]:
        """What failed or was blocked, in the graph's order."""
        return [
            (node, self.outcomes[ref])
            for ref, node in self.plan.graph.nodes.items()
            if ref in self.outcomes and self.outcomes[ref].status != "done"
        ]


def plan_campaign(points: Sequence[Point], measurements: Sequence[Request] = ()) -> Plan:
    """The plan of `points`; reads the store, writes nothing. `measurements` as in `build_graph`."""
    store = Store(points[0].config.store)
    graph = build_graph(points, store, measurements)
    cached = frozenset(reference for reference in graph.nodes if store.done(reference) is not None)
    return Plan(tuple(points), store, graph, cached)


def plan_tasks(plan: Plan, directory: Path, *, bodies: str = BODIES) -> tuple[Task, ...]:
    """The jobs that make what `plan` misses, for a campaign in `directory`."""
    return pack(
        plan.graph,
        plan.missing,
        store=str(plan.store.root.resolve()),
        campaign=str(directory.resolve()),
        settings=_settings(plan),
        bodies=bodies,
    )


def run_campaign(plan: Plan, directory: Path, listener: Listener, *, bodies: str = BODIES) -> Summary:
    """Makes everything the plan misses; returns how it ended, failures included.

    Writes campaign.json first. On KeyboardInterrupt every job is cancelled before it is raised again.
    """
    tasks = plan_tasks(plan, directory, bodies=bodies)
    clusters = {task.cluster.name: task.cluster for task in tasks}
    executors = {
        name: make_executor(cluster.executor, workers=cluster.workers, logs=directory / "logs")
        for name, cluster in clusters.items()
    }
    _write_campaign(plan, directory)
    (directory / "tasks").mkdir(exist_ok=True)
    (directory / "logs").mkdir(exist_ok=True)
    for task in tasks:
        save(directory / "tasks" / f"{task.id}.json", task)
    listener.begin(plan, tasks)
    ended = _follow(plan, directory, tasks, executors, listener)
    return Summary(plan, directory, ended)


def _write_campaign(plan: Plan, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    points = tuple(
        CampaignPoint(name=p.name, labels=p.labels, config=p.plain, keys=plan.graph.keys[p.name]) for p in plan.points
    )
    campaign = CampaignFile(
        name=plan.points[0].config.name,
        store=str(plan.store.root.resolve()),
        created_at_s=time.time(),
        points=points,
        cached=tuple(reference for reference in plan.graph.nodes if reference in plan.cached),
        environment={"crosspipe": crosspipe.__version__, "python": platform.python_version(), "host": platform.node()},
    )
    save(directory / CAMPAIGN_FILE, campaign)
    outcomes.write_job(directory, outcomes.JobRecord(task=DRIVER, job="", process=my_claim()))
    enter_campaign(plan.store, directory)
    for reference in plan.missing:
        request = plan.graph.nodes[reference].request
        if request.epoch is not None:  # a measurement begun: others join it instead of beginning another
            plan.store.register(request)
        outcomes.forget_outcome(directory, reference)


def _settings(plan: Plan) -> dict[str, dict[str, Any]]:
    run = plan.points[0].config.run
    return {"run": {key: getattr(run, key) for key in NOT_OF_THE_RESULT}}


def _follow(
    plan: Plan, directory: Path, tasks: Sequence[Task], executors: Mapping[str, Executor], listener: Listener
) -> dict[str, Outcome]:
    """Submits tasks when what they wait for has ended, and hears of every artifact as it ends."""
    waiting, running = list(tasks), dict[str, tuple[Task, Job]]()
    heard: dict[str, Outcome] = {}

    def hear(task: Task) -> None:
        for reference in task.references:
            outcome = None if reference in heard else outcomes.read_outcome(directory, reference)
            if outcome is not None:
                heard[reference] = outcome
                listener.ended(plan.graph.nodes[reference], outcome.status, outcome.reason)
        text = outcomes.hear_now(directory, task.id)
        if text:
            listener.now(task.stage, text)

    try:
        while waiting or running:
            unfinished = {task.id for task in waiting} | set(running)
            for task in [t for t in waiting if not unfinished & set(t.after)]:
                executor = executors[task.cluster.name]
                if executor.limit is not None and len(running) >= executor.limit:
                    continue
                waiting.remove(task)
                running[task.id] = (task, executor.submit(task, directory / "tasks" / f"{task.id}.json"))
            for task, job in list(running.values()):
                over = job.ended()
                hear(task)
                if over:
                    del running[task.id]
                    _bury(plan, directory, task, job)
                    hear(task)
            if running:
                time.sleep(_POLL_S)
    except BaseException:
        for _, job in running.values():
            job.cancel()
        raise
    return heard


def _bury(plan: Plan, directory: Path, task: Task, job: Job) -> None:
    """A job that ended without saying how its artifacts did: they failed with it."""
    for reference in task.references:
        if outcomes.read_outcome(directory, reference) is None:
            done = plan.store.done(reference) is not None
            outcomes.write_outcome(
                directory,
                reference,
                "done" if done else "failed",
                reason="" if done else job.how(),
                log=f"logs/{job.id}_0_log.out",
                job=job.id,
            )
