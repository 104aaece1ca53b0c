"""Tasks to arrays, and the whole text of their batch scripts (golden), as worked out by hand from sbatch's manual."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crosspipe.campaign.cluster import ClusterConfig, Resources
from crosspipe.campaign.driver import plan_campaign, plan_tasks
from crosspipe.campaign.slurm.arrays import arrays
from crosspipe.campaign.slurm.script import batch_script
from crosspipe.errors import UsageError

TWO_SITES = (0, 0, 1, 1)
STAGES = ("links", "blocks", "solve", "run")


def cluster(**values: Any) -> ClusterConfig:
    resources = {stage: Resources(minutes=5) for stage in STAGES} | values.pop("resources", {})
    return ClusterConfig(name="c", executor="slurm", resources=resources, **values)


def test_one_array_per_stage_with_edges_between_them(points: Callable[..., Any], tmp_path: Path) -> None:
    tasks = plan_tasks(plan_campaign(points(cluster__executor="slurm", run__points_per_job=1)), tmp_path)
    found = arrays(tasks, 1000)
    assert [(array.stage, len(array.tasks), array.after) for array in found] == [
        ("links", 1, ()), ("blocks", 1, ()), ("solve", 2, (0, 1)), ("run", 4, (1, 2)),
    ]  # fmt: skip
    split = arrays(tasks, 3)  # a small MaxArraySize
    assert [(array.stage, len(array.tasks), array.after) for array in split] == [
        ("links", 1, ()), ("blocks", 1, ()), ("solve", 2, (0, 1)), ("run", 3, (1, 2)), ("run", 1, (1, 2)),
    ]  # fmt: skip


def test_other_resources_make_other_arrays_and_a_split_shares_its_throttle(
    points: Callable[..., Any], tmp_path: Path
) -> None:
    resources = {stage: {"minutes": 5} for stage in STAGES} | {"run": {"minutes": 5, "at_once": 4}}
    few = points(cluster__executor="slurm", cluster__resources=resources, run__points_per_job=1)
    runs = [array for array in arrays(plan_tasks(plan_campaign(few), tmp_path), 2) if array.stage == "run"]
    assert [(len(array.tasks), array.resources.at_once) for array in runs] == [(2, 2), (2, 2)]
    alone = [array for array in arrays(plan_tasks(plan_campaign(few), tmp_path), 1) if array.stage == "run"]
    assert [(len(array.tasks), array.resources.at_once) for array in alone] == [(1, 1)] * 4
    scarce = resources | {"run": {"minutes": 5, "at_once": 3}}
    fewer = points(cluster__executor="slurm", cluster__resources=scarce, run__points_per_job=1)
    found = arrays(plan_tasks(plan_campaign(fewer), tmp_path), 1)
    runs = [number for number, array in enumerate(found) if array.stage == "run"]
    assert [found[number].resources.at_once for number in runs] == [1] * 4
    chained = [set(found[number].after) & set(runs) for number in runs]
    assert chained == [set(), set(), set(), {runs[0]}]  # never four at once
    both = (*plan_tasks(plan_campaign(few), tmp_path), *plan_tasks(plan_campaign(points(
        cluster__executor="slurm", pipeline__sites=1)), tmp_path))  # fmt: skip
    assert {a.resources.nodes for a in arrays(both, 99) if a.stage == "run"} == {4}  # one rank a node, either way
    dense = cluster(resources={"run": Resources(minutes=5, tasks_per_node=4)})
    assert dense.resources_of("run", (0, 0, 0, 0)).nodes == 1
    assert dense.resources_of("run", TWO_SITES).nodes == 2  # sites share no node


@pytest.mark.parametrize(
    ("sites", "site_of_rank", "per_node", "nodes", "constraint"),
    [
        (("dc0", "dc1"), TWO_SITES, 1, 4, "[dc0*2&dc1*2]"),
        (("dc0", "dc1"), TWO_SITES, 2, 2, "[dc0*1&dc1*1]"),
        (("dc0", "dc1"), (0,) * 6 + (1,) * 6, 4, 4, "[dc0*2&dc1*2]"),
        (("dc0", "dc1"), (0, 0), 1, 2, "dc0"),
        (("site-a", "gh200.b"), TWO_SITES, 1, 4, "[site-a*2&gh200.b*2]"),
        ((), TWO_SITES, 1, 4, None),
        (("dc0",), (), 1, 1, None),
    ],
)
def test_nodes_follow_from_the_ranks_and_span_the_sites(
    sites: tuple[str, ...], site_of_rank: tuple[int, ...], per_node: int, nodes: int, constraint: str | None
) -> None:
    config = cluster(sites=sites, resources={"run": Resources(minutes=5, tasks_per_node=per_node)})
    found = config.resources_of("run", site_of_rank)
    assert (found.nodes, found.constraint) == (nodes, constraint)


def test_nodes_and_sites_that_do_not_fit_are_refused_with_the_numbers() -> None:
    config = cluster(sites=("dc0",), resources={"run": Resources(minutes=5, nodes=3)})
    with pytest.raises(
        UsageError, match=r"cluster\.resources\.run\.nodes = 3: 4 tasks, 1 on a node, in 2 sites need 4"
    ):
        config.resources_of("run", TWO_SITES)
    with pytest.raises(UsageError, match=r"pipeline\.sites = 2: cluster c has the sites dc0"):
        cluster(sites=("dc0",)).resources_of("run", TWO_SITES)


def test_node_sets_are_sites_only_where_the_nodes_are_given() -> None:
    sites = ("nid[1-4]", "nid[5-8]")
    with pytest.raises(UsageError, match=r"cluster\.sites = 'nid\[1-4\]': is no feature.*use cluster=allocation"):
        cluster(sites=sites).resources_of("run", TWO_SITES)
    given = cluster(sites=sites, resources={"run": Resources(minutes=5, sbatch={"nodelist": "nid[1-2,5-6]"})})
    assert given.resources_of("run", TWO_SITES).constraint is None
    inside = msgspec.structs.replace(cluster(sites=sites), executor="allocation")
    assert inside.resources_of("run", TWO_SITES).constraint is None


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"signal": "B:TERM@10"}, "sbatch.signal = 'B:TERM@10': is set by crosspipe itself; use cluster.resources.run."
         "warning_s"),
        ({"dependency": "singleton"}, "sbatch.dependency = 'singleton': is set by crosspipe itself; leave it out"),
        ({"cpus_per_task": 4}, "sbatch.cpus_per_task = 4: .*use cluster.resources.run.cpus_per_task"),
        ({"cpus-per-task": 4}, "sbatch.cpus-per-task = 4: .*use cluster.resources.run.cpus_per_task"),
        ({"mem": "4G"}, "sbatch.mem = '4G': .*use cluster.resources.run.memory_gib"),
        ({"comment": "one\n#SBATCH --wrap"}, "sbatch.comment = .*would break the batch script; use one line"),
    ],
)  # fmt: skip
def test_options_that_would_undo_what_else_is_asked_for_are_refused(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        cluster(resources={"run": Resources(minutes=5, memory_gib=1.0, sbatch=options)})


def test_a_whole_nodes_memory_is_asked_for_by_zero() -> None:
    resources = cluster(resources={"run": Resources(minutes=5, sbatch={"mem": 0})}).resources_of("run", TWO_SITES)
    text = batch_script(resources, name="n", count=1, logs=Path("/c/logs"), submission=Path("/c/s.json"))
    assert "#SBATCH --mem=0\n" in text


SIMPLE = f"""#!/bin/bash

# Parameters
#SBATCH --job-name=crosspipe-solve-1a2b3c4d
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/c/logs/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=B:USR2@90
#SBATCH --time=10

# command
export SUBMITIT_EXECUTOR=slurm
exec {sys.executable} -u -m crosspipe.campaign.slurm.job /c/submissions/002-solve.json
"""

FULL = f"""#!/bin/bash

# Parameters
#SBATCH --account=project-sub:test1
#SBATCH --array=0-249%8
#SBATCH --comment='it'"'"'s mine (really)'
#SBATCH --constraint='[dc0*2&dc1*2]'
#SBATCH --cpus-per-task=72
#SBATCH --dependency=afterany:11:12
#SBATCH --exclude='nid[007,013]'
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --job-name=crosspipe-run-1a2b3c4d
#SBATCH --mem=1536M
#SBATCH --nice=0
#SBATCH --no-requeue
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=/c/logs/%A_%a_0_log.out
#SBATCH --partition=normal
#SBATCH --qos=high
#SBATCH --signal=B:USR2@120
#SBATCH --time=60

# setup
module load cray-mpich
export CUDA_DEVICE_MAX_CONNECTIONS=8
export WORDS='two words'

# command
export SUBMITIT_EXECUTOR=slurm
exec {sys.executable} -u -m crosspipe.campaign.slurm.job /c/submissions/003-run.json
"""


def test_the_script_of_a_job_that_asks_for_nothing() -> None:
    text = batch_script(
        Resources(minutes=10, nodes=1),
        name="crosspipe-solve-1a2b3c4d",
        count=1,
        logs=Path("/c/logs"),
        submission=Path("/c/submissions/002-solve.json"),
    )
    assert text.rstrip() == SIMPLE.rstrip()


def test_the_script_of_an_array_that_asks_for_everything() -> None:
    resources = Resources(
        minutes=60,
        nodes=4,
        tasks_per_node=4,
        at_once=8,
        cpus_per_task=72,
        gpus_per_node=4,
        memory_gib=1.5,
        partition="normal",
        account="project-sub:test1",
        qos="high",
        constraint="[dc0*2&dc1*2]",
        exclude="nid[007,013]",
        setup=("module load cray-mpich",),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "8", "WORDS": "two words"},
        sbatch={"exclusive": True, "comment": "it's mine (really)", "hint": None, "contiguous": False, "nice": 0},
        warning_s=120,
        requeue=False,
    )
    text = batch_script(
        resources,
        name="crosspipe-run-1a2b3c4d",
        count=250,
        logs=Path("/c/logs"),
        submission=Path("/c/submissions/003-run.json"),
        after=("11", "12"),
    )
    assert text.rstrip() == FULL.rstrip()
