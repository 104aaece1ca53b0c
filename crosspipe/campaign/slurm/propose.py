"""A first cluster configuration from what Slurm says of its nodes, and whether Slurm would take such jobs.

It is a proposal: accounts, time limits and the modules to load are the site's business, and a person's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from crosspipe.campaign.cluster import ClusterConfig
from crosspipe.campaign.slurm.queue import SlurmError, call, setting
from crosspipe.campaign.slurm.script import batch_script

_MPI = ("pmix", "cray_shasta", "pmi2")  # in the order in which they are tried where the site has no default
_MINUTES = {"links": 15, "blocks": 30, "solve": 60, "run": 60}


class Facts(NamedTuple):
    """What Slurm says: the default partition with CPUs, GPUs and the minutes it allows; its nodes' features; MPI."""

    cluster: str
    partition: str
    cpus: int
    gpus: int
    most_minutes: int | None
    features: Mapping[str, frozenset[str]]
    mpi: tuple[str, ...]
    mpi_default: str


class Answer(NamedTuple):
    """Whether Slurm would take the jobs of a stage, and what it said."""

    stage: str
    taken: bool
    said: str


def facts() -> Facts:
    """Asks sinfo, scontrol and srun; SlurmError where they do not answer."""
    rows = [line.split("|") for line in call(["sinfo", "--noheader", "--format=%P|%c|%G|%l"]).splitlines()]
    if not rows:
        raise SlurmError("sinfo shows no partition; ask the administrators for access")
    partition, cpus, gres, limit = next((row for row in rows if row[0].endswith("*")), rows[0])
    partition = partition.rstrip("*")
    said = call(["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%f"])
    features = {name: frozenset(words.split(",")) for name, words in (line.split("|") for line in said.splitlines())}
    plugins = call(["srun", "--mpi=list"]).replace(":", " ").split()
    return Facts(
        cluster=setting("ClusterName") or "slurm",
        partition=partition,
        cpus=int(cpus.rstrip("+")),
        gpus=_gpus(gres),
        most_minutes=_minutes(limit),
        features=features,
        mpi=tuple(name for name in _MPI if name in plugins),
        mpi_default=setting("MpiDefault") or "none",
    )


def sites(features: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Features of which every node has exactly one, so that they may be its site; () where there are none such."""
    everywhere = frozenset.intersection(*features.values()) if features else frozenset()
    telling = sorted(frozenset().union(*features.values()) - everywhere)
    return tuple(telling) if all(len(words & set(telling)) == 1 for words in features.values()) else ()


def propose(found: Facts) -> dict[str, Any]:
    """The configuration, as plain data for a YAML file in `conf/cluster`."""
    mpi = found.mpi_default if found.mpi_default != "none" else next(iter(found.mpi), None)
    most = found.most_minutes or max(_MINUTES.values())
    resources: dict[str, dict[str, Any]] = {
        stage: {"minutes": min(minutes, most), "partition": found.partition} for stage, minutes in _MINUTES.items()
    }
    resources["links"]["srun_args"] = [f"--mpi={mpi}"] if mpi else []
    resources["solve"]["cpus_per_task"] = min(8, found.cpus)
    if found.gpus:
        resources["blocks"]["gpus_per_node"] = 1
        resources["run"] |= {"tasks_per_node": found.gpus, "gpus_per_node": found.gpus}
        resources["links"]["tasks_per_node"] = found.gpus
    return {
        "name": found.cluster,
        "executor": "slurm",
        "sites": list(sites(found.features)),
        "patience_s": 30,
        "resources": resources,
    }


def text(proposal: Mapping[str, Any]) -> str:
    """The proposal as YAML."""
    head = f"# {proposal['name']}, as `crosspipe doctor` found it: check partition, account, times and modules.\n"
    return head + str(yaml.safe_dump(dict(proposal), sort_keys=False, default_flow_style=None, width=120))


def try_out(proposal: Mapping[str, Any], site_of_rank: Sequence[int]) -> list[Answer]:
    """Hands a script per stage to `sbatch --test-only`: nothing is submitted."""
    cluster = msgspec.convert(proposal, ClusterConfig)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in _MINUTES:
            ranks = site_of_rank if stage in ("links", "run") else ()
            script = Path(folder) / f"{stage}.sh"
            resources = cluster.resources_of(stage, ranks)
            script.write_text(
                batch_script(resources, name=f"crosspipe-{stage}", count=1, logs=Path(folder), submission=script)
            )
            try:
                call(["sbatch", "--test-only", str(script)])
            except SlurmError as error:
                answers.append(Answer(stage, False, str(error)))
            else:
                answers.append(Answer(stage, True, f"{resources.nodes} nodes for {resources.minutes} min"))
    return answers


def _gpus(gres: str) -> int:
    """GPUs of `gpu:a100:4(S:0-1),nvme:1`."""
    for item in gres.split(","):
        name, *rest = item.partition("(")[0].split(":")
        if name == "gpu":
            return int(rest[-1]) if rest and rest[-1].isdecimal() else 1
    return 0


def _minutes(limit: str) -> int | None:
    """Minutes of `1-12:00:00`, `1:00:00`, `30:00`; None for `infinite`."""
    days, _, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    hours, minutes = (int(parts[0]), int(parts[1])) if len(parts) == 3 else (0, int(parts[0]))
    return (int(days or 0) * 24 + hours) * 60 + minutes
