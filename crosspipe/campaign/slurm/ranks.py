"""Ranks in an allocation: which node each one gets, and the srun command that starts them there.

Consecutive ranks share a node, and the ranks of a site its nodes; sites are told by the features of their nodes or by
name. srun gets the hosts in rank order (`--distribution=arbitrary`), so that rank r is stage r whatever Slurm's own
order would be.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from ClusterShell.NodeSet import NodeSet, NodeSetException

from crosspipe.campaign.cluster import Resources
from crosspipe.campaign.slurm.queue import SlurmError, call
from crosspipe.campaign.tasks import Task
from crosspipe.errors import FieldError, StageFailed
from crosspipe.execute.lifeline import die_with
from crosspipe.execute.spec import Session
from crosspipe.model.config import ALLOCATOR_ENVIRONMENT
from crosspipe.store import save

SRUN_LOG = "srun.log"  # of the latest start of the ranks


class Node(NamedTuple):
    """A node of the allocation: its name, its features, the address at which others find it."""

    name: str
    features: frozenset[str] = frozenset()
    address: str = ""


def host_list(text: str) -> tuple[str, ...]:
    """The hosts of `nid[001-002,007]`; FieldError for a list that is cut, reversed, empty or no list."""
    try:
        hosts = tuple(NodeSet(text, resolver=None))
    except NodeSetException as error:
        raise FieldError("node list", text, str(error), "ask Slurm for a whole list") from None
    if not hosts or any(" " in host for host in hosts) or text.count("[") != text.count("]"):
        raise FieldError("node list", text, "is no list of hosts", "ask Slurm for a whole list")
    return hosts


def allocated() -> tuple[Node, ...]:
    """The nodes of the job this runs in, in Slurm's order."""
    await_controller()
    names = host_list(os.environ["SLURM_JOB_NODELIST"])
    said = call(["sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%f|%o"])
    known: dict[str, Node] = {}
    for line in said.splitlines():
        name, features, address = line.split("|")
        known[name] = Node(name, frozenset(features.split(",")), address)
    return tuple(known.get(name, Node(name, address=name)) for name in names)


def await_controller(within_s: float = 600.0, pause_s: float = 5.0) -> None:
    """Returns when Slurm's controller is up: without it srun starts nothing.

    Raises SlurmError where it stays down for `within_s`, and at once where that cannot be asked.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            call(["scontrol", "ping"])
            return
        except SlurmError as error:
            if "is DOWN" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause_s)


def place(site_of_rank: Sequence[int], nodes: Sequence[Node], sites: Sequence[str], per_node: int) -> tuple[Node, ...]:
    """The node of every rank, at most `per_node` on one; StageFailed where a site has too few nodes.

    `sites[s]` is a feature of site s's nodes, or a node set; () takes the nodes as they come.
    """
    left = list(nodes)
    found: list[Node] = []
    begun: dict[int, list[Node]] = {}  # site -> the places left on the node it has begun to fill
    for rank, site in enumerate(site_of_rank):
        if not begun.get(site):
            fitting = [node for node in left if not sites or _is_of(node, sites[site])]
            if not fitting:
                names = ", ".join(node.name for node in nodes)
                what = f"site {sites[site]}" if sites else "the job"
                raise StageFailed(f"rank {rank} finds no node of {what} left among {names}; see cluster.sites")
            left.remove(fitting[0])
            begun[site] = [fitting[0]] * per_node
        found.append(begun[site].pop())
    return tuple(found)


def srun_command(
    hosts: Sequence[str], program: Sequence[str], resources: Resources, hostfile: Path
) -> tuple[list[str], dict[str, str]]:
    """(command, environment) that start `program` once per entry of `hosts`, in that order.

    Writes `hostfile`. CPUs per task are passed on, which srun does not inherit since Slurm 22.05.
    """
    hostfile.write_text("".join(f"{host}\n" for host in hosts))
    command = [
        "srun",
        f"--ntasks={len(hosts)}",
        f"--nodes={len(set(hosts))}",
        f"--ntasks-per-node={resources.tasks_per_node}",
        "--distribution=arbitrary",
        f"--cpus-per-task={resources.cpus_per_task or 1}",
        "--kill-on-bad-exit=0",
        "--unbuffered",
        *resources.srun_args,
        *resources.container,
        *program,
    ]
    return command, {"SLURM_HOSTFILE": str(hostfile)}


def first_error(directory: Path) -> str:
    """What srun said first of a rank that died (`dc1n0: task 2: Killed`); empty where it said nothing."""
    log = directory / SRUN_LOG
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line.removeprefix("srun: error: ") for line in lines if line.startswith("srun: error: ")), "")


class Ranks(NamedTuple):
    """The ranks of a task, placed on the nodes of the allocation this runs in."""

    nodes: tuple[Node, ...]
    resources: Resources
    hostfile: Path

    def command(self, program: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """See `srun_command`."""
        return srun_command([node.name for node in self.nodes], program, self.resources, self.hostfile)

    def check(self, measured: Sequence[str]) -> None:
        """StageFailed where a rank was on the node of another, as `measured` says: its site would be told wrongly.

        Only srun is sure to follow the host file. Nodes by names that Slurm does not know say nothing.
        """
        known = {node.name for node in self.nodes}
        for rank, (name, node) in enumerate(zip(measured, self.nodes, strict=False)):
            if name in known and name != node.name:
                raise StageFailed(
                    f"rank {rank} was started on {name}, and its site asks for {node.name}: the sites' links would be "
                    "mixed up; leave cluster.mpiexec null (srun), or pass it the hosts in their order: {hosts}"
                )

    def launch(self, session: Session) -> list[subprocess.Popen[bytes]]:
        """Starts a run session's ranks, in one srun that stands for all; see `crosspipe.execute.session`."""
        await_controller()
        directory = Path(session.directory)
        first = self.nodes[0]
        port = 20000 + secrets.randbelow(12000)  # another one at each start: an earlier one may linger
        session = msgspec.structs.replace(session, rendezvous=f"tcp://{first.address or first.name}:{port}")
        file = save(directory / "session.json", session)
        command, environment = self.command([sys.executable, "-m", "crosspipe.execute.worker", str(file)])
        parent = os.getpid()
        with (directory / SRUN_LOG).open("wb") as log:
            ranks = subprocess.Popen(
                command,
                env={**os.environ, **ALLOCATOR_ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: die_with(parent),
            )
        return [ranks]


def ranks_of(task: Task, hostfile: Path) -> Ranks:
    """The ranks of `task` in the allocation this runs in; `hostfile` is where srun will read their hosts."""
    resources = task.resources
    nodes = place(task.site_of_rank, allocated(), task.cluster.sites, resources.tasks_per_node)
    return Ranks(nodes, resources, hostfile)


def _is_of(node: Node, site: str) -> bool:
    is_set = "[" in site or "," in site
    return site in node.features or (is_set and node.name in NodeSet(site, resolver=None))
