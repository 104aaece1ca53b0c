"""Tasks: the nodes that are still to be made, packed into jobs, with what has to end before each.

A task is a plain JSON file in the campaign directory, so that the same job can be started by submitit, by a script, or
by hand (`python -m crosspipe.campaign.job TASK.json`). An edge means *ended*, not *succeeded*: a job looks for its
inputs itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from crosspipe.campaign.cluster import ClusterConfig, Resources
from crosspipe.campaign.graph import Graph, Node
from crosspipe.store import Request, load

BODIES = "crosspipe.campaign.stages"


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="task"):
    """One job: it makes what `requests` ask for (all of one stage), after the tasks in `after` have ended.

    `names` says for which point an artifact is made (one of them, where several want it), for logs and progress.
    `bodies` is the module whose `BODIES[stage]` does the work; `settings` are values that do not determine the result,
    such as time-outs. `site_of_rank` is the site of each rank it starts.
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
    site_of_rank: tuple[int, ...] = ()

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
        return self.cluster.resources_of(self.stage, self.site_of_rank)


@cache
def references_of(path: Path) -> tuple[str, ...]:
    """What the task in a file makes. Read once: a task's file is never written again."""
    return load(path, Task).references


def pack(
    graph: Graph,
    missing: Collection[str],
    *,
    store: str,
    campaign: str,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    bodies: str = BODIES,
    first: Mapping[str, int] | None = None,
    in_flight: Mapping[str, str] | None = None,
) -> tuple[Task, ...]:
    """Tasks for the nodes in `missing`, in the graph's order: nodes of one stage and group share jobs of `per_job`.

    `first` is the number to count from, per stage, so that no earlier task is overwritten; `in_flight` says which of
    the earlier tasks still makes what these may need.
    """
    groups: dict[tuple[str, str], list[Node]] = {}
    for reference in missing:
        node = graph.nodes[reference]
        groups.setdefault((node.request.stage, node.group), []).append(node)
    tasks: list[Task] = []
    made_by = dict(in_flight or {})
    for (stage, _), nodes in groups.items():
        size = nodes[0].per_job
        for start in range(0, len(nodes), size):
            part = nodes[start : start + size]
            number = (first or {}).get(stage, 0) + sum(task.stage == stage for task in tasks)
            identity = f"{stage}-{number:03d}"
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
                    site_of_rank=part[0].site_of_rank,
                )
            )
    return tuple(tasks)
