"""Ranks on nodes: host lists as Slurm prints them, sites by feature or name, and the srun command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign import stages
from crosspipe.campaign.cluster import ClusterConfig, Resources
from crosspipe.campaign.job import Context
from crosspipe.campaign.slurm.queue import SlurmError
from crosspipe.campaign.slurm.ranks import (
    Node,
    Ranks,
    await_controller,
    first_error,
    host_list,
    place,
    srun_command,
)
from crosspipe.campaign.tasks import Task
from crosspipe.errors import FieldError, StageFailed
from crosspipe.store import Store


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("nid[001-004,007]", ["nid001", "nid002", "nid003", "nid004", "nid007"]),
        ("b04-[09-10]", ["b04-09", "b04-10"]),
        ("nid[098-101]", ["nid098", "nid099", "nid100", "nid101"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"]),
        ("nid[001-002]-hsn0", ["nid001-hsn0", "nid002-hsn0"]),
        ("single", ["single"]),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    assert sorted(host_list(text)) == sorted(hosts)


@pytest.mark.parametrize("text", ["nid[001-00", "nid[003-001]", "None assigned", "", "nid001-002]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="node list"):
        host_list(text)


def nodes(*names: str) -> list[Node]:
    """`b1` is a node of site `b`."""
    return [Node(name, frozenset({name[0], "gpu"})) for name in names]


@pytest.mark.parametrize(
    ("sites", "per_node", "hosts"),
    [
        (("b", "a"), 1, ["b1", "b2", "a1", "a2"]),  # the pipeline's order, not Slurm's
        (("b", "a"), 2, ["b1", "b1", "a1", "a1"]),
        ((), 1, ["a1", "a2", "b1", "b2"]),
        (("a[1-2]", "b[1-2]"), 1, ["a1", "a2", "b1", "b2"]),
        (("b2,b1", "a1,a2"), 1, ["b1", "b2", "a1", "a2"]),  # without brackets
    ],
)
def test_consecutive_ranks_share_a_site_and_a_node(sites: tuple[str, ...], per_node: int, hosts: list[str]) -> None:
    placed = place((0, 0, 1, 1), nodes("a1", "a2", "b1", "b2"), sites, per_node)
    assert [node.name for node in placed] == hosts


def test_replicas_fill_the_nodes_of_their_sites() -> None:
    placed = place((0, 1) * 3, nodes("a1", "a2", "b1", "b2"), ("a", "b"), 2)
    assert [node.name for node in placed] == ["a1", "b1", "a1", "b1", "a2", "b2"]


def test_too_few_nodes_of_a_site_are_said_with_what_there_is() -> None:
    with pytest.raises(StageFailed, match="rank 3 finds no node of site b left among a1, a2, a3, b1"):
        place((0, 0, 1, 1), nodes("a1", "a2", "a3", "b1"), ("a", "b"), 1)


def test_srun_gets_the_hosts_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    resources = Resources(
        minutes=5, tasks_per_node=2, cpus_per_task=8, srun_args=("--mpi=pmi2",), container=("apptainer", "exec", "x")
    )
    command, environment = srun_command(["b1", "b1", "a1", "a1"], ["python", "-m", "m"], resources, tmp_path / "hosts")
    assert Path(environment["SLURM_HOSTFILE"]).read_text() == "b1\nb1\na1\na1\n"
    assert command == [
        "srun", "--ntasks=4", "--nodes=2", "--ntasks-per-node=2", "--distribution=arbitrary", "--cpus-per-task=8",
        "--kill-on-bad-exit=0", "--unbuffered", "--mpi=pmi2", "apptainer", "exec", "x", "python", "-m", "m",
    ]  # fmt: skip


def test_ranks_that_landed_on_each_others_nodes_are_refused() -> None:
    ranks = Ranks(tuple(nodes("b1", "a1")), Resources(minutes=5), Path("hosts"))
    ranks.check(["b1", "a1"])
    ranks.check(["ip-10-0-0-1", "ip-10-0-0-2"])  # hosts that call themselves otherwise: nothing can be said
    with pytest.raises(StageFailed, match="rank 0 was started on a1, and its site asks for b1"):
        ranks.check(["a1", "b1"])


def test_a_sites_own_mpiexec_gets_the_hosts_and_the_container(tmp_path: Path) -> None:
    plain = {stage: Resources(minutes=5) for stage in ("blocks", "solve", "run")}
    cluster = ClusterConfig(
        name="c", executor="allocation", mpiexec=("mpirun", "--host", "{hosts}"),
        resources={**plain, "links": Resources(minutes=5, container=("apptainer", "exec", "x"))},
    )  # fmt: skip
    task = Task(id="links-000", stage="links", requests=(), store="", campaign="", cluster=cluster)
    ranks = Ranks(tuple(nodes("b1", "b1", "a1")), task.resources, tmp_path / "hosts")
    context = Context(task, Store(tmp_path), tmp_path, print)
    command, _ = stages._command(ranks, 3, ["m", "--out=x"], context)
    assert command == [
        "mpirun", "--host", "b1,b1,a1", "-n", "3", "apptainer", "exec", "x", sys.executable, "-m", "m", "--out=x",
    ]  # fmt: skip


def test_what_srun_says_first_is_the_cause(tmp_path: Path) -> None:
    assert first_error(tmp_path) == ""
    (tmp_path / "srun.log").write_text(
        "srun: Job step created\nsrun: error: dc1n0: task 2: Killed\nsrun: error: dc0n0: task 0: Exited with code 1\n"
    )
    assert first_error(tmp_path) == "dc1n0: task 2: Killed"


def test_a_controller_that_is_away_is_waited_for(slurm: Any) -> None:
    slurm.order("away")
    await_controller(pause_s=0.01)
    assert slurm.calls["scontrol"] == 2
    slurm.order("away")
    with pytest.raises(SlurmError, match="is DOWN"):
        await_controller(within_s=0.0)
    slurm.order("unconfigured")
    with pytest.raises(SlurmError, match="configuration source"):
        await_controller()  # not in ten minutes either
