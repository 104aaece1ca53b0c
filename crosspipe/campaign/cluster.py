"""Where jobs run and what they ask for: `conf/cluster/*.yaml`, typed, and how many nodes the ranks of a stage need.

Nothing here talks to a scheduler; `crosspipe.campaign.slurm` turns it into batch scripts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from crosspipe.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
REPORT = "report"  # the last job of a campaign on a cluster; its resources may be left out
_NEEDED = ("links", "blocks", "solve", "run")
_OF_OURS = {  # options of sbatch that are said otherwise, or that nothing would work without
    "job-name": "", "output": "", "error": "", "open-mode": "", "array": "at_once", "dependency": "",
    "signal": "warning_s", "requeue": "requeue", "no-requeue": "requeue", "time": "minutes", "nodes": "nodes",
    "ntasks": "tasks_per_node", "ntasks-per-node": "tasks_per_node", "cpus-per-task": "cpus_per_task",
    "gpus-per-node": "gpus_per_node", "partition": "partition", "account": "account", "qos": "qos",
    "constraint": "constraint", "exclude": "exclude", "wrap": "", "parsable": "", "wait": "", "clusters": "",
}  # fmt: skip


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of the configuration: unknown keys are errors."""


class Resources(Section, frozen=True, kw_only=True):
    """What the jobs of one stage ask for. On a laptop only `minutes` and `environment` matter.

    Ranks (of `links` and `run`) share a node by `tasks_per_node`; `nodes` follows from that and may be left None.
    `at_once` bounds how many of the stage's jobs run together. `setup` are shell lines before Python starts,
    `environment` variables that must stand before it does, `container` the words before every command that ranks and
    profilers are started with, `srun_args` the site's way to start ranks. `sbatch` passes further options through.
    `warning_s` before the time limit a job is told to stop cleanly; with `requeue` it then goes on in another life, as
    it does after a preemption or a node's failure.
    """

    minutes: Count
    nodes: Count | None = None
    tasks_per_node: Count = 1
    at_once: Count | None = None
    cpus_per_task: Count | None = None
    gpus_per_node: int | None = None
    memory_gib: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    srun_args: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    sbatch: dict[str, str | int | bool | None] = {}
    warning_s: Count = 90
    requeue: bool = True


class ClusterConfig(Section, frozen=True, kw_only=True):
    """Where jobs run. `executor`: `local` (processes of this machine), `slurm`, `allocation` (all inside the one
    Slurm job this runs in, ranks on its nodes), or `debug` (in this process).

    `workers` bounds the jobs at once on a laptop. `sites` names each site's nodes, in the order of the pipeline: by the
    Slurm feature they have (`dc0`), or, where the nodes are given (`allocation`, `sbatch: {nodelist: ...}`), as a node
    set (`nid[001-064]`); empty: nodes are taken in Slurm's order.
    `patience_s` is how long a job waits for an input that the file system may not show yet. On nodes, a run's training
    state is kept every `keep_every_s` of its iterations, so that another life of its job goes on from there (None:
    never). `mpiexec` starts the ranks of `links` where srun cannot; `{hosts}` in it becomes their hosts, in order.
    `resources` has an entry per stage.
    """

    name: str
    executor: Literal["local", "slurm", "allocation", "debug"]
    workers: int = 1
    mpiexec: tuple[str, ...] | None = None
    sites: tuple[str, ...] = ()
    patience_s: float = 5.0
    keep_every_s: Seconds | None = 60.0
    resources: dict[str, Resources]

    def __post_init__(self) -> None:
        missing = [stage for stage in _NEEDED if stage not in self.resources]
        if missing:
            raise UsageError("cluster.resources", None, f"has no {missing[0]}", "give every stage's resources")
        unknown = [stage for stage in self.resources if stage not in (*_NEEDED, REPORT)]
        if unknown:
            stages = ", ".join((*_NEEDED, REPORT))
            raise UsageError("cluster.resources", unknown[0], "no such stage", f"use {stages}")
        for stage, own in self.resources.items():
            _check_options(f"cluster.resources.{stage}", own)
        if self.workers < 1:
            raise UsageError("cluster.workers", self.workers, "nobody would work", "use 1 or more")

    @property
    def on_nodes(self) -> bool:
        """Whether ranks run on the nodes of a Slurm job, started by srun."""
        return self.executor in ("slurm", "allocation")

    def resources_of(self, stage: str, site_of_rank: Sequence[int] = ()) -> Resources:
        """What a job of `stage` asks for, with its number of nodes, and the constraint that spans the sites.

        `site_of_rank` is the site of each of its ranks, () where the stage has none. Raises UsageError where nodes or
        sites are configured that do not fit the ranks.
        """
        own = self.resources.get(stage) or msgspec.structs.replace(self.resources["solve"], minutes=15)
        if self.executor != "slurm":
            return msgspec.structs.replace(own, nodes=1)
        counts = Counter(site_of_rank)
        per_site = math.ceil(max(counts.values(), default=1) / own.tasks_per_node)
        nodes = per_site * max(1, len(counts))
        if own.nodes not in (None, nodes):
            asked = f"{len(site_of_rank) or 1} tasks, {own.tasks_per_node} on a node, in {max(1, len(counts))} sites"
            raise UsageError(
                f"cluster.resources.{stage}.nodes",
                own.nodes,
                f"{asked} need {nodes}",
                "leave it null, or change tasks_per_node",
            )
        given = own.constraint or own.sbatch.get("nodelist")
        spanning = self._spanning(counts, per_site, nodes_are_given=bool(given))
        return msgspec.structs.replace(own, nodes=nodes, constraint=own.constraint or spanning)

    def _spanning(self, counts: Counter[int], per_site: int, *, nodes_are_given: bool) -> str | None:
        """The constraint of one allocation with `per_site` nodes of each site; None where that is the user's choice."""
        if not counts or not self.sites:
            return None
        if max(counts) >= len(self.sites):
            raise UsageError(
                "pipeline.sites",
                len(counts),
                f"cluster {self.name} has the sites {', '.join(self.sites)}",
                "use no more, or change cluster.sites",
            )
        features = [self.sites[site] for site in sorted(counts)]
        if nodes_are_given:
            return None
        for feature in features:
            if not re.fullmatch(r"[\w.:=+-]+", feature):
                raise UsageError(
                    "cluster.sites",
                    feature,
                    "is no feature, and Slurm cannot be asked for so many nodes of each of several sets",
                    "name a feature of each site's nodes, give sbatch.nodelist per stage, or use cluster=allocation",
                )
        return features[0] if len(features) == 1 else f"[{'&'.join(f'{name}*{per_site}' for name in features)}]"


def _check_options(where: str, own: Resources) -> None:
    """UsageError for a further option of sbatch that would undo, or be undone by, what else is asked for."""
    for name, value in own.sbatch.items():
        option = name.replace("_", "-")
        if option in _OF_OURS or (option == "mem" and own.memory_gib is not None):
            better = _OF_OURS.get(option, "memory_gib")
            remedy = f"use {where}.{better}" if better else "leave it out"
            raise UsageError(f"{where}.sbatch.{name}", value, "is set by crosspipe itself", remedy)
        if any(ord(letter) < 32 for letter in f"{name}{value}"):
            raise UsageError(f"{where}.sbatch.{name}", value, "would break the batch script", "use one line of text")
