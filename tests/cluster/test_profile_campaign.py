"""A profile of the whole cluster as a campaign: links of every pair of nodes of two sites, blocks on every node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.problem.nodes import NodeProfiles
from crosspipe.problem.sites import site_links
from crosspipe.store import load

NODES = ("dc0n0", "dc0n1", "dc1n0", "dc1n1")
SMALL = [
    "cluster=devcluster", "model=tiny", "profile.links.time_budget=2", "profile.links.largest=65536",
    "+profile.links.sizes=[1,1024,65536]", "profile.blocks.budget_s=1", "profile.blocks.repetitions=6",
    "wait=true", "campaign_dir=profiled",
]  # fmt: skip


@pytest.mark.timeout(300)
def test_a_cluster_of_two_sites_is_profiled(cluster, tmp_path):
    command = ["crosspipe", "run", "experiment=profile_cluster", *SMALL]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = cluster.run("env", f"--chdir={tmp_path}", *command, within_s=240, PATH=path)
    assert "1 of 1 points done" in done.stdout
    store = tmp_path / "crosspipe-store"
    (table,) = (load(file, LinkTable) for file in store.glob("links/*/links.json"))
    assert table.node_of_rank == NODES
    assert [(x.source_site, x.target_site, x.pairs) for x in site_links(table)] == [
        (0, 0, 2), (0, 1, 4), (1, 0, 4), (1, 1, 2),
    ]  # fmt: skip
    # four nodes of one machine, which is what makes this a development cluster
    assert {"nodes_are_one", "loopback"} <= {finding.name for finding in table.findings}
    (nodes,) = (load(file, NodeProfiles) for file in store.glob("blocks/*/nodes.json"))
    assert set(nodes.by_node) == set(NODES)
    (costs,) = (load(file, BlockCosts) for file in store.glob("blocks/*/blocks.json"))
    assert costs.environment["nodes"].startswith("median of 4 nodes")
    (page,) = (tmp_path / "profiled" / "report").glob("**/report.html")
    text = page.read_text(encoding="utf-8")
    for words in ("site 0 → site 1", "nodes_are_one", "Nodes, artifact blocks/", "Operators of F, D and W", *NODES):
        assert words in text, words
    drawn = {file.stem for file in page.parent.glob("figures/*.svg")}
    assert {"links", "pairs", "samples", "fit", "nodes"} <= drawn
