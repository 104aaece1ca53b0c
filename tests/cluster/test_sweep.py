"""The whole road on a real Slurm: 24 points over two sites of two nodes, links over MPI and four ranks included."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars
import pytest

from crosspipe.problem import LinkTable
from crosspipe.store import RunRecord, load

SWEEP = [
    "model=tiny", "pipeline.stages=4", "pipeline.sites=2", "pipeline.microbatches=4",
    "schedule=gpipe,1f1b,zbh1,zbh2", "network.delay=[0,0],[0.5,0],[1,0],[1,0.25],[2,0.25],[2,1]",
    "run.iterations=1", "run.warmup=1", "run.pace=2", "run.points_per_job=24", "run.check_gradients=false",
    "network.tolerance=100",
    "profile.links.time_budget=2", "profile.blocks.budget_s=2", "campaign_dir=sweep", "wait=true",
]  # fmt: skip


def identities(folder: Path) -> list[tuple[str, ...]]:
    """What a report says of its points, but for what was timed."""
    (file,) = (folder / "sweep" / "report").glob("**/results.csv")
    rows = polars.read_csv(file)
    return sorted(rows.select("point", "schedule", "traversal", "status").rows())


@pytest.mark.timeout(1300)
def test_24_points(cluster, tmp_path):
    """The report is that of `cluster=local`, but for timings; the jobs are five."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in ("devcluster", "local"):
        (tmp_path / name).mkdir()
        command = ["crosspipe", "run", "-m", f"cluster={name}", *SWEEP]
        done = cluster.run("env", f"--chdir={tmp_path / name}", *command, within_s=600, PATH=path)
        assert "24 of 24 points done" in done.stdout
    assert len(list((tmp_path / "devcluster" / "sweep" / "submissions").glob("*.json"))) <= 10
    store = tmp_path / "devcluster" / "crosspipe-store"
    (links,) = (load(path, LinkTable) for path in store.glob("links/*/links.json"))
    assert list(links.node_of_rank) == ["dc0n0", "dc0n1", "dc1n0", "dc1n1"]
    assert {"mpi", "gloo"} <= set(links.transports())
    records = [load(path, RunRecord) for path in store.glob("run/*/run.json")]
    assert [[rank.host for rank in record.ranks] for record in records] == [list(links.node_of_rank)] * 24
    assert identities(tmp_path / "devcluster") == identities(tmp_path / "local")
