"""The batch scripts of `slurm/`, submitted as they are, with options a site's user would give them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crosspipe.campaign.outcomes import hear_now
from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.store import RunRecord, load

ROOT = Path(__file__).parents[2]
NODES = ["dc0n0", "dc0n1", "dc1n0", "dc1n1"]
SITES = "--constraint=[dc0*2&dc1*2]"
SMALL = [
    "model=tiny", "pipeline.microbatches=4", "network.delay=[1,0.25]", "schedule=1f1b", "run.iterations=2",
    "run.warmup=1", "run.pace=8",
    "profile.links.time_budget=2", "profile.links.largest=65536", "+profile.links.sizes=[1,1024,65536]",
    "profile.blocks.budget_s=2",
]  # fmt: skip


@pytest.fixture
def start(cluster, tmp_path):
    """`start(SCRIPT, ARGUMENTS, OPTIONS, NAME=VALUE)` in an empty folder; what it prints goes to `out`, made anew."""

    def run(script: str, arguments: list[str], *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "out").unlink(missing_ok=True)
        command = ["sbatch", "--parsable", f"--chdir={tmp_path}", f"--output={tmp_path}/out", *options]
        here = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "SRUN_MPI": "--mpi=pmi2"}
        return cluster.run(*command, str(ROOT / "slurm" / script), *arguments, check=False, **(here | environment))

    return run


@pytest.fixture
def submit(start, tmp_path):
    """As `start`, to its end; returns what it printed."""

    def run(script: str, arguments: list[str], *options: str, **environment: str) -> str:
        done = start(script, arguments, "--wait", *options, **environment)
        said = (tmp_path / "out").read_text()
        assert done.returncode == 0, said
        return said

    return run


def test_profile(submit, tmp_path):
    """Links of all twelve ordered pairs of nodes, sites by the nodes' features, and the blocks of four stages."""
    model = str(ROOT / "conf" / "model" / "tiny.yaml")
    said = submit(
        "profile.sbatch", [], SITES, MODEL=model, BUDGET_S="2", SIZES="1,1024,65536", OUT="found", PYTHON=sys.executable
    )
    assert "sites of the ranks: 0,0,1,1\n" in said
    table = load(tmp_path / "found" / "links.json", LinkTable)
    assert len({(link.source, link.target) for link in table.links}) == 12
    assert len(load(tmp_path / "found" / "blocks.json", BlockCosts).blocks) == 4


@pytest.mark.timeout(600)
def test_campaign_stopped_before_its_limit_then_again_then_another_run(cluster, start, submit, tmp_path):
    """A campaign in one job, with a rank on each node; each job uses what earlier ones made."""
    job = start("campaign.sbatch", [*SMALL, "run.iterations=900"], SITES, SITES="[dc0,dc1]").stdout.strip()
    directory = tmp_path / "campaigns" / f"job-{job}"
    cluster.wait(lambda: ": iteration " in hear_now(directory, "run-000"), "an iteration", 240)
    cluster.run("scancel", "--batch", "--signal=TERM", job)  # as Slurm does, by --signal in the script
    cluster.wait(cluster.idle, "its end", 30)
    assert "jobs are cancelled, what is done stays" in (tmp_path / "out").read_text()
    said = submit("campaign.sbatch", ["-m", *SMALL], SITES, SITES="[dc0,dc1]")
    assert "profile links: 1 wanted, 1 cached" in said
    assert "1 of 1 points done" in said
    (record,) = [load(path, RunRecord) for path in (tmp_path / "crosspipe-store" / "run").glob("*/run.json")]
    assert [rank.host for rank in record.ranks] == NODES
    assert list(tmp_path.glob("campaigns/job-*/report/report.html"))
    said = submit("run.sbatch", [*SMALL, "schedule=zbh1"], SITES, SITES="[dc0,dc1]")
    assert "profile links: 1 wanted, 1 cached" in said
    assert "1 of 1 points done" in said
