"""A real training on a real Slurm loses a rank, its nodes, its time: what was finished stays, the rest goes on."""

from __future__ import annotations

import os
import re
import signal

import pytest
from slurm_campaigns import Training


@pytest.fixture
def training(cluster, tmp_path, monkeypatch):
    """`training(SCHEDULE, ..., KEY=VALUE of its run)` on the cluster without accounting."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return lambda *schedules, **run: Training(cluster, tmp_path, *schedules, **run)


@pytest.mark.timeout(400)
def test_a_rank_killed_and_a_rank_stopped(training, cluster, tmp_path):
    """Of three points in one job two lose a rank: each fails alone, by that rank's name; `retry` makes just those."""
    campaign = training("1f1b", "zbh1", "gpipe", iterations=6, timeout_s=6.0)
    campaign.submit()
    campaign.wait_for_iteration("1f1b", 2)
    os.kill(campaign.ranks()[2], signal.SIGKILL)
    campaign.wait_for_iteration("zbh1", 2)
    os.kill(campaign.ranks()[1], signal.SIGSTOP)
    reasons = campaign.reasons()
    assert reasons.keys() == {"run 1f1b", "run zbh1"}
    assert re.match(r"rank 2 .*\(iteration \d, .*; srun: dc1n0: task 2: Killed$", reasons["run 1f1b"])
    assert re.match(r"rank 1 hangs \(iteration \d, ", reasons["run zbh1"])
    cluster.wait(cluster.idle, "the end of the job")
    assert campaign.ranks() == {}
    said = cluster.crosspipe(tmp_path, "retry", str(campaign.directory)).stdout
    assert "it goes on by itself" in said
    assert campaign.follow().failures == []
    campaign.assert_complete()
    assert campaign.starts() == {"1f1b": 2, "zbh1": 2, "gpipe": 1}


@pytest.mark.timeout(400)
def test_warned_then_preempted(training, cluster):
    """A warning in the first of two points, a higher partition in the second: three lives, and each goes on where the
    training state was kept."""
    campaign = training("1f1b", "zbh1", iterations=12, keep_every_s=0.1)
    campaign.submit()
    job = campaign.job("run")
    campaign.wait_for_iteration("1f1b", 3)
    cluster.run("scancel", "--batch", "--signal=USR2", job)  # as Slurm does before a time limit
    campaign.wait_for_iteration("zbh1", 3)
    cluster.run("srun", "-p", "high", "-N4", "--exclusive", "true")
    assert campaign.follow().failures == []
    campaign.assert_complete()
    assert "Restarts=2 " in cluster.show(job)
    assert campaign.starts() == {"1f1b": 2, "zbh1": 2}
    for schedule in campaign.schedules:
        record = campaign.record(schedule)
        kept = int(record.environment["continued_after_iterations"])
        done = campaign.iterations(schedule)
        assert kept > 0
        assert sorted(number for number, _ in done if number < kept) == list(range(kept))  # once
        assert [number for number, _ in done][-1] == 12
        assert set(done) == {(i.index, f"{i.loss:.4f}") for i in record.iterations}  # what was done twice was the same
        assert [i.index for i in record.iterations] == list(range(13))
        assert campaign.kept(schedule) == 0
