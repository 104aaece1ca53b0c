"""The whole road on a real Slurm: 24 points over two sites of two nodes, links over MPI and four ranks included."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import polars
import pytest
from polars.testing import assert_frame_equal

from crosspipe.problem import LinkTable
from crosspipe.report.columns import ITERATION_COLUMNS, POINT_COLUMNS, Column
from crosspipe.store import RunRecord, load

SWEEP = [
    "model=tiny", "pipeline.stages=4", "pipeline.sites=2", "pipeline.microbatches=4",
    "schedule=gpipe,1f1b,zbh1,zbh2", "network.delay=[0,0],[0.5,0],[1,0],[1,0.25],[2,0.25],[2,1]",
    "run.iterations=1", "run.warmup=1", "run.pace=2", "run.points_per_job=24", "network.tolerance=100",
    "profile.links.time_budget=2", "profile.links.largest=65536", "+profile.links.sizes=[1,1024,65536]",
    "profile.blocks.budget_s=2", "campaign_dir=sweep",
]  # fmt: skip
# follow from what was timed: when receives are posted, where zbh2 puts W and so what it holds; keys: from where that is
TIMED = {
    "best_static", "differs_from_best_static", "proven_by", "predicted_bubble_ratio", "planned_receive_mib",
    "predicted_peak_activation_mib", "measured_peak_activation_mib", "peak_activation_mib",
    "late_blocks", "late_messages", "links_key", "blocks_key", "solve_key", "run_key",
}  # fmt: skip


def untimed(folder: Path, name: str, columns: Sequence[Column]) -> polars.DataFrame:
    """What a report's table says, but for times, what is reckoned in percent of them, and TIMED."""
    table = polars.read_parquet(folder / "sweep" / "report" / f"{name}.parquet")
    assert table.columns == [column.name for column in columns]
    kept = [column.name for column in columns if column.unit not in ("ms", "s", "%") and column.name not in TIMED]
    return table.select(kept).sort(kept)


@pytest.mark.timeout(900)
def test_24_points_of_which_nobody_waits(cluster, tmp_path):
    """Handed over in five jobs, and the shell comes back; the report of the last job is that of `cluster=local`."""
    slurm, local = tmp_path / "slurm", tmp_path / "local"
    for folder in (slurm, local):
        folder.mkdir()
    earlier = cluster.history()
    said = cluster.crosspipe(slurm, "run", "-m", "cluster=devcluster", *SWEEP).stdout
    assert said.splitlines()[-1] == "it goes on by itself; to look: crosspipe status sweep"
    assert len([job for job in cluster.history() if job not in earlier]) == 5
    assert "campaign: 24 points" in cluster.crosspipe(slurm, "status", "sweep").stdout
    assert cluster.jobs("%i")  # nothing waited for them
    assert "24 of 24 points done" in cluster.crosspipe(local, "run", "-m", "cluster=local", *SWEEP).stdout
    assert re.search(r"\brun\s+│\s+24 ", cluster.crosspipe(slurm, "watch", "sweep").stdout)
    cluster.wait(cluster.idle, "the report's job", 120)
    store = slurm / "crosspipe-store"
    (links,) = (load(path, LinkTable) for path in store.glob("links/*/links.json"))
    assert list(links.node_of_rank) == ["dc0n0", "dc0n1", "dc1n0", "dc1n1"]
    assert {"mpi", "gloo"} <= set(links.transports())
    records = [load(path, RunRecord) for path in store.glob("run/*/run.json")]
    assert [[rank.host for rank in record.ranks] for record in records] == [list(links.node_of_rank)] * 24
    for name, columns in (("results", POINT_COLUMNS), ("iterations", ITERATION_COLUMNS)):
        assert_frame_equal(untimed(slurm, name, columns), untimed(local, name, columns), check_exact=True)
    points = untimed(slurm, "results", POINT_COLUMNS)
    assert points["gradient_relative_error"].null_count() == points["loss_last"].null_count() == 0
