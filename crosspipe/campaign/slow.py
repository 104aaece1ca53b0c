"""Nodes that profiling found slow, to be offered for `exclude`: the pipeline waits for its slowest stage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from crosspipe.problem import BlockCosts, Finding, LinkTable
from crosspipe.report.artifacts import load_campaign
from crosspipe.store import Store, load


def slow_nodes(directory: Path) -> dict[str, str]:
    """The slow nodes of the campaign in `directory`, each with what its profiles say of it."""
    campaign = load_campaign(directory)
    store = Store(campaign.store)
    found: dict[str, str] = {}
    for stage in ("links", "blocks"):
        for key in dict.fromkeys(point.keys[stage] for point in campaign.points if stage in point.keys):
            if store.done(f"{stage}/{key}") is None:
                continue
            if stage == "blocks":
                found |= of_findings(load(store.file(f"{stage}/{key}", "blocks.json"), BlockCosts).findings, ())
            else:
                links = load(store.file(f"{stage}/{key}", "links.json"), LinkTable)
                found |= of_findings(links.findings, links.node_of_rank or ())
    return found


def of_findings(findings: Iterable[Finding], node_of_rank: tuple[str, ...]) -> dict[str, str]:
    """The nodes that findings `slow_node` and `slow_rank` speak of, and what they say."""
    found: dict[str, str] = {}
    for finding in findings:
        for sentence in finding.detail.split("; "):
            node, rank = re.match(r"(\S+?)(\.\d+)?'s blocks take", sentence), re.search(r"rank (\d+)'s", sentence)
            if finding.name == "slow_node" and node:
                found[node[1]] = sentence
            if finding.name == "slow_rank" and rank and int(rank[1]) < len(node_of_rank):
                found[node_of_rank[int(rank[1])]] = sentence
    return found
