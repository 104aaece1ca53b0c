"""Blocks profiled on the node of every rank: the artifact is their median, or placed where the nodes are known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from crosspipe.campaign import stages
from crosspipe.campaign.cluster import ClusterConfig, Resources
from crosspipe.campaign.configs import config_dir
from crosspipe.campaign.job import Context
from crosspipe.campaign.slurm import ranks
from crosspipe.campaign.tasks import Task
from crosspipe.problem import BlockCosts
from crosspipe.problem.nodes import NodeProfiles
from crosspipe.store import Request, Store, load, my_claim

SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
while read -r node; do SLURMD_NODENAME=$node "$@" < /dev/null || exit 1; done < $SLURM_HOSTFILE
"""


@pytest.mark.parametrize(
    ("executor", "nodes"), [("slurm", "median of 2 nodes: a, b"), ("allocation", "stage 0 on a, stage 1 on b")]
)
def test_the_node_of_every_rank_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, nodes: str
) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:/usr/bin:/bin")
    monkeypatch.setattr(ranks, "allocated", lambda: (ranks.Node("a"), ranks.Node("b")))
    model = yaml.safe_load((config_dir() / "model" / "tiny.yaml").read_text())
    request = Request(
        stage="blocks",
        version=1,
        config={"model": model, "traversal": "ud", "layers": [[2], [2]], "every_node": True, "estimate": True},
        epoch=1,
    )
    resources = {stage: Resources(minutes=1) for stage in ("links", "blocks", "solve", "run")}
    cluster = ClusterConfig(name="c", executor=executor, resources=resources)
    store = Store(tmp_path / "store")
    task = Task(
        id="blocks-000", stage="blocks", requests=(request,), store=str(store.root), campaign=str(tmp_path),
        cluster=cluster, site_of_rank=(0, 1),
    )  # fmt: skip
    said: list[str] = []
    claim = my_claim()
    store.claim(request, claim)
    making = store.begin(request, claim)
    stages.blocks(making, Context(task, store, tmp_path, said.append))
    store.finish(making)
    costs = load(store.file(request, "blocks.json"), BlockCosts)
    assert costs.environment["nodes"] == nodes
    assert set(load(store.file(request, "nodes.json"), NodeProfiles).by_node) == {"a", "b"}
    assert msgspec.json.decode(store.file(request, "done.json").read_bytes())["files"].keys() == {
        "blocks.json",
        "nodes.json",
    }


def test_a_node_whose_profile_does_not_come_is_named_and_one_task_a_gpu_is_a_file_each() -> None:
    nodes = [ranks.Node("a"), ranks.Node("a"), ranks.Node("b")]
    assert stages._parts(nodes, 1) == ["blocks.a.json", "blocks.b.json"]
    assert stages._parts(nodes, 2) == ["blocks.a.0.json", "blocks.a.1.json", "blocks.b.0.json"]
