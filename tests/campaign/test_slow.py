"""Slow nodes are named as Slurm names them, from the sentences that the profilers write."""

from __future__ import annotations

from crosspipe.campaign.slow import of_findings
from crosspipe.problem import Finding, Link
from crosspipe.profile.distrust import slow_ranks


def test_a_slow_rank_is_the_node_it_sat_on() -> None:
    def link(source: int, target: int) -> Link:
        latency_ns = 90_000 if 2 in (source, target) else 10_000
        return Link(source=source, target=target, transport="mpi", latency_ns=latency_ns, bandwidth_bytes_per_s=None)

    links = [link(a, b) for a in range(4) for b in range(4) if a != b]
    findings = slow_ranks(links, (0, 0, 1, 1))
    assert of_findings(findings, ("a1", "a2", "b1", "b2")) == {
        "b1": "mpi: rank 2's alpha is 9.0 times that of its peers"
    }


def test_a_slow_node_is_named_without_its_device_and_others_are_not() -> None:
    findings = [
        Finding(
            name="slow_node", detail="n7.2's blocks take 1.31 times as long as those of its peers; n9's blocks take 2"
        ),
        Finding(name="bimodal", detail="rank 0's samples"),
    ]
    assert sorted(of_findings(findings, ("n1",))) == ["n7", "n9"]
