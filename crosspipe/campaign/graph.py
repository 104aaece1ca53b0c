"""The graph of a campaign: which artifacts its points need, each one once, with the keys that name them.

    links  (per cluster and layout)  ─┐
    blocks (per model and split)     ─┴─► solve (per problem and schedule) ─► run (per run configuration)

Planning reads the store only for the epochs of measurements, and writes nothing; what runs where is
`crosspipe.campaign.tasks`.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import msgspec

from crosspipe.campaign.cluster import ClusterConfig
from crosspipe.campaign.config import NetworkConfig, PointConfig
from crosspipe.campaign.costs import stand_in
from crosspipe.campaign.points import Point
from crosspipe.errors import FieldError, UsageError
from crosspipe.problem.analytic import message_bytes
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split, split_model
from crosspipe.store import Request, Store

STAGES = ("links", "blocks", "solve", "run")
VERSIONS = {"links": 1, "blocks": 1, "solve": 2, "run": 1}  # raise one when what a stage writes changes
_DEPTH = {"profile": ("links", "blocks"), "solve": ("links", "blocks", "solve"), "run": STAGES}
NOT_OF_THE_RESULT = (
    "points_per_job",
    "timeout_s",
    "startup_timeout_s",
)  # keys of `run` that only say how it is carried out
_SEARCHED = ("greedy", "exact", "portfolio")  # families that look at time limit, workers and seed


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact to be had: its request, the points that want it, and the cluster whose job makes it.

    Nodes of one stage and one `group` may share a job; `per_job` is how many. `site_of_rank` is the site of each rank
    that the making starts, () where it starts none.
    """

    request: Request
    points: tuple[str, ...]
    cluster: ClusterConfig
    group: str
    per_job: int = 1
    site_of_rank: tuple[int, ...] = ()

    @property
    def reference(self) -> str:
        """`stage/key`."""
        return self.request.reference


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes by reference, inputs before those who need them; `keys[point][stage]` says what a point needs."""

    nodes: dict[str, Node]
    keys: dict[str, dict[str, str]]

    def stage(self, name: str) -> tuple[Node, ...]:
        """The nodes of one stage."""
        return tuple(node for node in self.nodes.values() if node.request.stage == name)


def build_graph(points: Sequence[Point], store: Store, measurements: Sequence[Request] = ()) -> Graph:
    """The graph of `points`; work that several need stands in it once.

    `measurements` are requests, with their epochs, to be used whatever their age: those of the campaign to go on with.
    Raises UsageError for a schedule that does not exist, or layers that do not fit the stages.
    """
    nodes: dict[str, Node] = {}
    wanted: dict[str, list[str]] = {}
    keys: dict[str, dict[str, str]] = {}
    epochs = {msgspec.structs.replace(request, epoch=None).key: request for request in measurements}
    for point in points:
        mine: dict[str, str] = {}
        for node in _road(point.config, store, epochs):
            nodes.setdefault(node.reference, node)
            wanted.setdefault(node.reference, []).append(point.name)
            mine[node.request.stage] = node.request.key
        keys[point.name] = mine
    ordered = sorted(nodes.values(), key=lambda node: STAGES.index(node.request.stage))
    return Graph(
        nodes={n.reference: msgspec.structs.replace(n, points=tuple(wanted[n.reference])) for n in ordered}, keys=keys
    )


def layout(config: PointConfig) -> tuple[str, Split]:
    """(traversal, layers per stage and chunk) of a point; the schedule's name fixes the traversal."""
    from crosspipe.solver import SCHEDULES

    name, given = config.schedule.name, config.schedule.traversal
    if name not in SCHEDULES:
        raise UsageError("schedule", name, "no such schedule", f"use one of {', '.join(SCHEDULES)}")
    fixed = SCHEDULES[name].traversal
    if fixed is not None and given not in (None, fixed):
        raise UsageError("schedule.traversal", given, f"{name} is a schedule of traversal {fixed}", "leave it null")
    traversal = fixed or given or "ud"
    chunks = {"ud": 1, "wave": 2}.get(traversal, config.schedule.chunks or 2)
    if config.schedule.chunks not in (None, chunks):
        raise UsageError("schedule.chunks", config.schedule.chunks, f"{traversal} has {chunks}", "leave it null")
    pipeline = config.pipeline
    try:
        split = split_model(config.model, pipeline.stages, chunks, traversal=traversal, explicit=pipeline.layers)
    except FieldError as error:  # the user typed it
        field = "model.layers" if pipeline.layers is None else "pipeline.layers"
        raise UsageError(field, pipeline.layers or error.value, error.wrong, error.remedy) from None
    return traversal, split


def _road(config: PointConfig, store: Store, epochs: dict[str, Request]) -> list[Node]:
    """The nodes of one point, in the order of the road."""
    if not config.costs.measured:
        return _simulated_road(config)
    traversal, split = layout(config)
    place = _place(config.cluster)
    profile, pipeline = config.profile, config.pipeline
    links = _measurement(
        Request(
            stage="links",
            version=VERSIONS["links"],
            config={"place": place, "site_of_rank": list(pipeline.site_of_stage()), **_link_options(config)},
        ),
        config,
        store,
        epochs,
    )
    blocks = _measurement(
        Request(
            stage="blocks",
            version=VERSIONS["blocks"],
            config={
                "place": place,
                "model": msgspec.to_builtins(config.model),
                "traversal": traversal,
                "layers": [list(row) for row in split],
                **({"every_node": True} if profile.every_node else {}),
                **profile.blocks,
            },
        ),
        config,
        store,
        epochs,
    )
    inputs = {"links": links.reference, "blocks": blocks.reference}
    solve = Request(stage="solve", version=VERSIONS["solve"], config=_solve_config(config), inputs=inputs)
    sites = pipeline.site_of_stage()
    made = {
        "links": Node(
            request=links, points=(), cluster=config.cluster, group=links.key, site_of_rank=sites,
        ),
        "blocks": Node(
            request=blocks, points=(), cluster=config.cluster, group=blocks.key,
            site_of_rank=sites if profile.every_node else (),
        ),
        "solve": Node(
            request=solve, points=(), cluster=config.cluster, group=config.cluster.name,
            per_job=config.solver.points_per_job,
        ),
        "run": _run_node(config, config.model, split, {"blocks": blocks.reference, "solve": solve.reference}),
    }  # fmt: skip
    return [made[stage] for stage in _DEPTH[config.until]]


def _simulated_road(config: PointConfig) -> list[Node]:
    """The nodes of a point whose costs are not measured: nothing to profile, and what runs is a paced stand-in."""
    traversal, split = layout(config)
    pace = config.run.pace if config.until == "run" else None
    costs = msgspec.to_builtins(msgspec.structs.replace(config.costs, name=""))
    model = msgspec.to_builtins(config.model)
    blocks = Request(
        stage="blocks",
        version=VERSIONS["blocks"],
        config={"costs": costs, "model": model, "traversal": traversal, "layers": [list(row) for row in split]},
    )
    solve = Request(
        stage="solve",
        version=VERSIONS["solve"],
        config={**_solve_config(config), "pace": None if pace == 1 else pace},
        inputs={"blocks": blocks.reference},
    )
    trained, layers = stand_in(config.model, len(split), len(split[0]), traversal)
    inputs = {"blocks": blocks.reference, "solve": solve.reference}
    nodes = [
        Node(request=blocks, points=(), cluster=config.cluster, group="given", per_job=1000),
        Node(
            request=solve, points=(), cluster=config.cluster, group=config.cluster.name,
            per_job=config.solver.points_per_job,
        ),
        _run_node(config, trained, layers, inputs),
    ]  # fmt: skip
    return [node for node in nodes if node.request.stage in _DEPTH[config.until]]


def _run_node(config: PointConfig, model: ModelConfig, split: Split, inputs: dict[str, str]) -> Node:
    """The run of one point, which trains `model`; points that differ in nothing but the schedule share a session."""
    request = Request(
        stage="run",
        version=VERSIONS["run"],
        config={
            "model": msgspec.to_builtins(model),
            "layers": [list(row) for row in split],
            "run": {k: v for k, v in msgspec.to_builtins(config.run).items() if k not in NOT_OF_THE_RESULT},
            "emulate": config.network.kind != "measured",
            **({"origin": config.network.origin} if config.network.origin else {}),
            "replicas": config.pipeline.replicas,
        },
        inputs=inputs,
    )
    sites = config.pipeline.site_of_stage()
    content = msgspec.json.encode((request.config, sites), order="sorted").decode()
    return Node(
        request=request,
        points=(),
        cluster=config.cluster,
        group=f"{config.cluster.name} {inputs['blocks']} {content}",
        per_job=config.run.points_per_job,
        site_of_rank=sites * config.pipeline.replicas,
    )


def _link_options(config: PointConfig) -> dict[str, Any]:
    """The link profiler's options: the run's transport is among them, the Problem is built from its links.

    Sizes go up in powers of 4 until they hold the model's own message.
    """
    options = dict(config.profile.links)
    largest = options.get("largest")
    if isinstance(largest, int) and largest > 0:
        while largest < message_bytes(config.model):
            largest *= 4
        options["largest"] = largest
    if config.run.transport != "gloo":  # the profiler's own choice has gloo
        options.setdefault("transports", ["mpi", config.run.transport])
    return options


def _place(cluster: ClusterConfig) -> str:
    """Where a measurement holds: a cluster by its name, this machine by its host name besides."""
    return cluster.name if cluster.on_nodes else f"{cluster.name}@{platform.node()}"


def _measurement(request: Request, config: PointConfig, store: Store, epochs: dict[str, Request]) -> Request:
    if request.key not in epochs:
        days = config.profile.max_age_days
        epochs[request.key] = store.epoch_of(
            request, max_age_s=None if days is None else days * 86400, refresh=config.profile.refresh
        )
    return epochs[request.key]


def _solve_config(config: PointConfig) -> dict[str, Any]:
    from crosspipe.solver import SCHEDULES

    schedule: dict[str, Any] = {"name": config.schedule.name}
    if config.schedule.name == "cross_ud_sub":
        schedule["pieces"] = config.schedule.pieces
    searched = SCHEDULES[config.schedule.name].family in _SEARCHED
    solver = {"time_limit_s": config.solver.time_limit_s, "workers": config.solver.workers, "seed": config.solver.seed}
    # of one site, no message crosses any link between sites: whatever it is, the Problem is the same
    across = config.network if config.pipeline.sites > 1 else NetworkConfig(kind="injected", delay=(0, 0))
    network = msgspec.to_builtins(across.canonical())
    del network["origin"]  # of what a run shows, not of what is solved
    return {
        "schedule": schedule,
        "solver": solver if searched else {},
        "network": network,
        "pipeline": msgspec.to_builtins(config.pipeline),
        "pace": config.run.pace,
    }
