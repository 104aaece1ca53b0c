"""Tasks: the nodes that are still to be made, packed into jobs, with what has to end before each.

A task is a plain JSON file in the campaign directory, so that the same job can be started by submitit, by a script, or
by hand (`python -m crosspipe.campaign.job TASK.json`). An edge means *ended*, not *succeeded*: a job looks for its
inputs itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from crosspipe.campaign.config import ClusterConfig, Resources
from crosspipe.campaign.graph import Graph, Node
from crosspipe.store import Request

BODIES = "crosspipe.campaign.stages"


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="task"):
    """One job: it makes what `requests` ask for (all of one stage), after the tasks in `after` have ended.

    `names` says for which point an artifact is made (one of them, where several want it), for logs and progress.
    `bodies` is the module whose `BODIES[stage]` does the work; `settings` are values that do not determine the result,
    such as time-outs.
    """

    schema: int = 1
    id: str
    stage: str
    requests: tuple[Request, ...]
    after: tuple[str, ...] = ()
    store: str
    campaign: str
    cluster: ClusterConfig
    bodies: str = BODIES
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}

    @property
    def references(self) -> tuple[str, ...]:
        """What it makes, as `stage/key`."""
        return tuple(self.by_reference)

    @property
    def by_reference(self) -> dict[str, Request]:
        """Its requests by `stage/key`."""
        return {request.reference: request for request in self.requests}

    @property
    def resources(self) -> Resources:
        """What its job asks for."""
        return self.cluster.resources[self.stage]


def pack(
    graph: Graph,
    missing: Collection[str],
    *,
    store: str,
    campaign: str,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    bodies: str = BODIES,
) -> tuple[Task, ...]:
    """Tasks for the nodes in `missing`, in the graph's order: nodes of one stage and group share jobs of `per_job`."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for reference in missing:
        node = graph.nodes[reference]
        groups.setdefault((node.request.stage, node.group), []).append(node)
    tasks: list[Task] = []
    made_by: dict[str, str] = {}
    for (stage, _), nodes in groups.items():
        size = nodes[0].per_job
        for start in range(0, len(nodes), size):
            part = nodes[start : start + size]
            identity = f"{stage}-{sum(task.stage == stage for task in tasks):03d}"
            inputs = (made_by.get(ref) for node in part for ref in node.request.inputs.values())
            made_by |= {node.reference: identity for node in part}
            tasks.append(
                Task(
                    id=identity,
                    stage=stage,
                    requests=tuple(node.request for node in part),
                    after=tuple(dict.fromkeys(task for task in inputs if task is not None)),
                    store=store,
                    campaign=campaign,
                    cluster=part[0].cluster,
                    bodies=bodies,
                    settings=dict((settings or {}).get(stage, {})),
                    names={node.reference: node.points[0] for node in part},
                )
            )
    return tuple(tasks)
