"""The doctor's proposal, against what two sites' Slurm says."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import msgspec
import pytest
import yaml

from crosspipe.campaign import doctor
from crosspipe.campaign.cluster import ClusterConfig
from crosspipe.campaign.slurm import propose
from crosspipe.campaign.slurm.propose import Facts
from crosspipe.cli import campaigns

TWO_SITES = Facts(
    cluster="twin", partition="normal", cpus=288, gpus=4, most_minutes=30,
    features={"a1": frozenset({"siteA", "gh200"}), "b1": frozenset({"siteB", "gh200"})},
    mpi=("pmix", "pmi2"), mpi_default="none",
)  # fmt: skip


def test_a_proposal_is_a_valid_configuration_that_keeps_the_partitions_limits() -> None:
    proposal = propose.propose(TWO_SITES)
    assert proposal["sites"] == ["siteA", "siteB"]
    assert proposal["resources"]["links"] == {
        "minutes": 15, "partition": "normal", "srun_args": ["--mpi=pmix"], "tasks_per_node": 4,
    }  # fmt: skip
    assert proposal["resources"]["run"]["minutes"] == 30
    cluster = msgspec.convert(yaml.safe_load(propose.text(proposal)), ClusterConfig)
    run = cluster.resources_of("run", (0,) * 4 + (1,) * 4)
    assert (run.nodes, run.constraint, run.gpus_per_node) == (2, "[siteA*1&siteB*1]", 4)


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"n1": {"x"}, "n2": {"y"}}, ("x", "y")),
        ({"n1": {"x"}, "n2": {"x"}}, ()),  # all alike
        ({"n1": {"x", "big"}, "n2": {"y"}}, ()),  # what is a site here?
        ({"n1": {"(null)"}}, ()),
    ],
)
def test_sites_are_features_of_which_every_node_has_one(features: dict[str, set[str]], found: tuple[str, ...]) -> None:
    assert propose.sites({name: frozenset(words) for name, words in features.items()}) == found


def test_what_sinfo_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, str] = {
        "--format=%P|%c|%G|%l": "debug|4|(null)|30:00\nnormal*|128+|gpu:a100:4(S:0-1),nvme:1|1-12:00:00\n",
        "--format=%N|%f": "n1|(null)\n",
        "--mpi=list": "MPI plugin types are...\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n",
        "config": "ClusterName             = site\nMpiDefault              = pmi2\n",
    }
    monkeypatch.setattr(propose, "call", lambda command: said[command[-1]])
    monkeypatch.setattr(propose, "setting", lambda name: {"ClusterName": "site", "MpiDefault": "pmi2"}[name])
    found: Any = propose.facts()
    assert (found.partition, found.cpus, found.gpus, found.most_minutes) == ("normal", 128, 4, 36 * 60)
    assert propose.propose(found)["resources"]["links"]["srun_args"] == ["--mpi=pmi2"]


@pytest.mark.parametrize(("order", "times"), [("unconfigured", 1), (None, 0)])
def test_the_doctor_says_once_that_slurm_does_not_answer(
    slurm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], order: str | None, times: int
) -> None:
    proposed: list[object] = []
    monkeypatch.setattr(doctor, "examine", lambda store: list(doctor._slurm()))  # the rest takes its time
    monkeypatch.setattr(campaigns, "_propose_cluster", proposed.append)
    if order is not None:
        slurm.order(order)
    assert campaigns.doctor(Namespace(store=slurm.folder)) == 0
    said = capsys.readouterr().out
    assert said.count("Could not establish a configuration source") == times
    assert len(proposed) == 1 - times
    assert ("debug* 4 nodes" in said) is (order is None)
