"""`experiment=wan`: measured over a shaped link, planned with what was found, executed there, and called what it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars
import pytest

from crosspipe.problem import LinkTable
from crosspipe.store import RunRecord, load, read_timelines

SHORT = [
    "schedule=1f1b,zbh1", "model=tiny", "run.pace=20", "run.iterations=2", "pipeline.microbatches=4",
    "profile.links.sizes=[1024,32768]", "profile.links.time_budget=2", "profile.blocks.budget_s=2",
    "campaign_dir=wan", "wait=true",
]  # fmt: skip


@pytest.mark.timeout(300)
def test_schedules_cross_a_link_that_is_not_our_model(start_cluster, tmp_path):
    """20 ms a way, give or take 2; what is ready on one side is used on the other no sooner, and soon inside a site."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with start_cluster("--wan", "--delay-ms 20 --jitter-ms 2 --rate-mbit 100 --congestion reno") as cluster:
        done = cluster.run(
            cluster.command, "exec", "--port", str(cluster.port), "--",
            "env", f"--chdir={tmp_path}", f"PATH={path}",
            "crosspipe", "run", "-m", "experiment=wan", "cluster=devcluster", *SHORT,
        )  # fmt: skip
    assert "2 of 2 points done" in done.stdout
    store = tmp_path / "crosspipe-store"
    (links,) = (load(file, LinkTable) for file in store.glob("links/*/links.json"))
    latencies_ms = {(a, b): links.between(a, b).latency_ns / 1e6 for a in range(4) for b in range(4) if a != b}
    assert all((18 <= ms <= 30) == (a // 2 != b // 2) for (a, b), ms in latencies_ms.items())
    records = [load(file, RunRecord) for file in store.glob("run/*/run.json")]
    assert {record.schedule_name for record in records} == {"1f1b", "zbh1"}
    for record in records:
        assert record.origin == "shaped TCP"
        assert [rank.host for rank in record.ranks] == ["dc0n0", "dc0n1", "dc1n0", "dc1n1"]
        assert record.delay_error_ns == {}  # nothing was injected
        assert record.environment["congestion_control"] == "reno"
        # the first microbatch goes there before the first gradient comes back
        assert all(iteration.makespan_ns >= 2 * 18_000_000 for iteration in record.iterations)
    for file in store.glob("run/*/timelines.parquet"):
        for timeline in read_timelines(file):
            assert timeline.origin == "shaped TCP"
            waited = [m for m in timeline.messages if m.wire is not None and m.arrival_ns > m.ready_ns]
            assert waited
            assert min(m.arrival_ns - m.ready_ns for m in waited) >= 18_000_000
    (results,) = (tmp_path / "wan" / "report").glob("**/results.csv")
    assert set(polars.read_csv(results)["origin"]) == {"shaped TCP"}
