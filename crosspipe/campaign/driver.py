"""The driver: plans a campaign, submits what the store lacks, follows it, and ends with the report.

It keeps nothing in memory that matters: killed at any moment and started again, it finds in the store what is done, in
the claims what others are making, and goes on with the rest.
"""

from __future__ import annotations

import math
import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

import crosspipe
from crosspipe.campaign import outcomes
from crosspipe.campaign.executors import Executor, Job, make_executor
from crosspipe.campaign.graph import NOT_OF_THE_RESULT, Graph, Node, build_graph
from crosspipe.campaign.job import myself
from crosspipe.campaign.outcomes import DRIVER
from crosspipe.campaign.points import Point
from crosspipe.campaign.tasks import BODIES, Task, pack
from crosspipe.errors import UsageError
from crosspipe.store import Request, Store, load, save
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

    def begin(self, plan: Plan) -> None: ...

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


def plan_tasks(
    plan: Plan,
    directory: Path,
    *,
    bodies: str = BODIES,
    missing: Sequence[str] | None = None,
    in_flight: Mapping[str, str] | None = None,
) -> tuple[Task, ...]:
    """The jobs that make what `plan` misses (or the part `missing` of it), for a campaign in `directory`.

    `in_flight` says which earlier task still makes what they may need.
    """
    return pack(
        plan.graph,
        plan.missing if missing is None else missing,
        store=str(plan.store.root.resolve()),
        campaign=str(directory.resolve()),
        settings=_settings(plan),
        bodies=bodies,
        first=first_numbers(directory),
        in_flight=in_flight,
    )


def first_numbers(directory: Path) -> dict[str, int]:
    """Per stage, the first number that no task in `directory` has: a job may still read its task."""
    numbers: dict[str, int] = {}
    for path in (directory / "tasks").glob("*-*.json"):
        name = re.fullmatch(r"(\w+)-(\d+)", path.stem)
        if name is not None:  # a person's own file is none of ours
            numbers[name[1]] = max(numbers.get(name[1], 0), int(name[2]) + 1)
    return numbers


def check_time(tasks: Sequence[Task]) -> None:
    """UsageError where the searches packed into one job may take longer than the job."""
    for task in tasks:
        limits_s = [request.config.get("solver", {}).get("time_limit_s", 0.0) for request in task.requests]
        resources = task.resources
        most_s = resources.minutes * 60 - (resources.warning_s if task.cluster.executor == "slurm" else 0)
        if task.stage == "solve" and sum(limits_s) > most_s:
            fits = int(most_s // max(limits_s))
            longer = f"raise cluster.resources.solve.minutes to {math.ceil(sum(limits_s) / 60) + 2}"
            raise UsageError(
                "solver.time_limit_s",
                max(limits_s),
                f"{len(limits_s)} searches of one job may take {sum(limits_s):.0f} s, and the job has {most_s} s",
                f"use solver.points_per_job={fits}, or {longer}" if fits else longer,
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
    write_campaign(plan, directory, plan.missing)
    outcomes.write_job(directory, outcomes.JobRecord(task=DRIVER, job="", process=myself().claim()))
    (directory / "logs").mkdir(exist_ok=True)
    listener.begin(plan)
    ended = _Following(plan, directory, executors, listener).follow(tasks)
    return Summary(plan, directory, ended)


def write_campaign(plan: Plan, directory: Path, missing: Sequence[str]) -> None:
    """campaign.json, and a clean slate for what is to be made: measurements begun, earlier outcomes forgotten."""
    check_same(plan, directory)
    (directory / "tasks").mkdir(parents=True, exist_ok=True)
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
    enter_campaign(plan.store, directory)
    for reference in missing:
        request = plan.graph.nodes[reference].request
        if request.epoch is not None:  # a measurement begun: others join it instead of beginning another
            plan.store.register(request)
        outcomes.forget_outcome(directory, reference)


def check_same(plan: Plan, directory: Path) -> None:
    """UsageError where `directory` is the campaign of points that `plan` does not have: they would be lost from it."""
    if not (directory / CAMPAIGN_FILE).exists():
        return
    names = {point.name for point in plan.points}
    planned = [plan.graph.keys[name].items() for name in names]
    before = load(directory / CAMPAIGN_FILE, CampaignFile).points
    gone = [p.name for p in before if p.name not in names and not any(p.keys.items() <= keys for keys in planned)]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        wrong = f"is the campaign of other points: {gone[0]}{more} would be lost from it"
        raise UsageError("campaign_dir", str(directory), wrong, "give a new folder; what is done is used there too")


def _settings(plan: Plan) -> dict[str, dict[str, Any]]:
    run = plan.points[0].config.run
    return {"run": {key: getattr(run, key) for key in NOT_OF_THE_RESULT}}


class _Following:
    """Submits tasks when what they wait for has ended, and hears of every artifact as it ends."""

    def __init__(self, plan: Plan, directory: Path, executors: Mapping[str, Executor], listener: Listener) -> None:
        self._plan, self._directory, self._executors, self._listener = plan, directory, executors, listener
        self._waiting: list[Task] = []
        self._running: dict[str, tuple[Task, Job]] = {}
        self._heard: dict[str, Outcome] = {}
        self._second: set[str] = set()  # what a job has died of once

    def follow(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        """All `tasks`, to their end; how each artifact ended."""
        self._waiting = list(tasks)
        for task in tasks:
            self._write(task)
        try:
            while self._waiting or self._running:
                self._submit()
                for task, job in list(self._running.values()):
                    over = job.ended()
                    self._hear(task)
                    if over:
                        del self._running[task.id]
                        self._bury(task, job)
                        self._hear(task)
                if self._running:
                    time.sleep(_POLL_S)
        except BaseException:
            for _, job in self._running.values():
                job.cancel()
            raise
        return self._heard

    def _submit(self) -> None:
        unfinished = {task.id for task in self._waiting} | set(self._running)
        for task in [t for t in self._waiting if not unfinished & set(t.after)]:
            executor = self._executors[task.cluster.name]
            if executor.limit is not None and len(self._running) >= executor.limit:
                continue
            self._waiting.remove(task)
            self._running[task.id] = (task, executor.submit(task, self._directory / "tasks" / f"{task.id}.json"))

    def _write(self, task: Task) -> None:
        save(self._directory / "tasks" / f"{task.id}.json", task)

    def _hear(self, task: Task) -> None:
        for reference in task.references:
            outcome = None if reference in self._heard else outcomes.read_outcome(self._directory, reference)
            if outcome is not None:
                self._heard[reference] = outcome
                self._listener.ended(self._plan.graph.nodes[reference], outcome.status, outcome.reason)
        text = outcomes.hear_now(self._directory, task.id)
        if text:
            self._listener.now(task.stage, text)

    def _bury(self, task: Task, job: Job) -> None:
        """A job that ended without a word about some artifacts: each gets one more job, of its own, then it failed.

        So one point that kills its job does not take those packed with it along.
        """
        for reference, request in task.by_reference.items():
            if outcomes.read_outcome(self._directory, reference) is not None:
                continue
            log = f"logs/{job.id}_0_log.out"
            if self._plan.store.done(reference) is not None:
                outcomes.write_outcome(self._directory, reference, "done", log=log, job=job.id)
            elif reference in self._second:
                outcomes.write_outcome(self._directory, reference, "failed", reason=job.how(), log=log, job=job.id)
            else:
                self._second.add(reference)
                number = first_numbers(self._directory)[task.stage]
                again = msgspec.structs.replace(task, id=f"{task.stage}-{number:03d}", requests=(request,))
                self._write(again)
                self._waiting = [
                    msgspec.structs.replace(t, after=(*t.after, again.id)) if task.id in t.after else t
                    for t in self._waiting
                ]
                self._waiting.insert(0, again)
