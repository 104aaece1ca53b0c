"""The batch scripts of `slurm/`, submitted as they are, with options a site's user would give them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.store import RunRecord, load

ROOT = Path(__file__).parents[2]
NODES = ["dc0n0", "dc0n1", "dc1n0", "dc1n1"]
SITES = "--constraint=[dc0*2&dc1*2]"
SMALL = ["model=tiny", "pipeline.microbatches=4", "network.delay=[1,0.25]", "schedule=1f1b", "run.iterations=2",
         "run.warmup=1", "run.pace=8", "profile.links.time_budget=2", "profile.blocks.budget_s=2"]  # fmt: skip


@pytest.fixture
def submit(cluster, tmp_path):
    """`submit(SCRIPT, ARGUMENTS, OPTIONS, NAME=VALUE)` in an empty folder, to its end; returns what it printed."""

    def run(script: str, arguments: list[str], *options: str, **environment: str) -> str:
        command = ["sbatch", "--wait", f"--chdir={tmp_path}", f"--output={tmp_path}/out", *options]
        here = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "SRUN_MPI": "--mpi=pmi2"}
        done = cluster.run(*command, str(ROOT / "slurm" / script), *arguments, check=False, **(here | environment))
        said = (tmp_path / "out").read_text()
        assert done.returncode == 0, said
        return said

    return run


def test_profile(submit, tmp_path):
    """Links of all twelve ordered pairs of nodes, sites by the nodes' features, and the blocks of four stages."""
    model = str(ROOT / "conf" / "model" / "tiny.yaml")
    said = submit("profile.sbatch", [], SITES, MODEL=model, BUDGET_S="2", OUT="found", PYTHON=sys.executable)
    assert "sites of the ranks: 0,0,1,1\n" in said
    table = load(tmp_path / "found" / "links.json", LinkTable)
    assert len({(link.source, link.target) for link in table.links}) == 12
    assert len(load(tmp_path / "found" / "blocks.json", BlockCosts).blocks) == 4


@pytest.mark.timeout(600)
def test_campaign_then_another_run(submit, tmp_path):
    """A campaign in one job, with a rank on each node; the next job uses what it measured."""
    said = submit("campaign.sbatch", SMALL, SITES, SITES="[dc0,dc1]")
    assert "1 of 1 points done" in said
    (record,) = [load(path, RunRecord) for path in (tmp_path / "crosspipe-store" / "run").glob("*/run.json")]
    assert [rank.host for rank in record.ranks] == NODES
    assert list(tmp_path.glob("campaigns/job-*/report/report.html"))
    said = submit("run.sbatch", [*SMALL, "schedule=zbh1"], SITES, SITES="[dc0,dc1]")
    assert "profile links: 1 wanted, 1 cached" in said
    assert "1 of 1 points done" in said
