"""Jobs whose inputs failed, and jobs that wait for what will never be, on sites that treat those differently."""

from __future__ import annotations

import os
import signal


def test_dependents_of_a_failed_job_where_slurm_kills_invalid_dependencies(start_cluster, talk_to):
    """They start all the same, since they wait for an end and not for a success; each is told as blocked."""
    with start_cluster("--set", "DependencyParameters=kill_invalid_depend") as cluster:
        assert "= kill_invalid_depend" in cluster.run("scontrol", "show", "config").stdout
        campaign = talk_to(cluster)
        campaign.hold("links")
        campaign.submit()
        (links,) = campaign.running("links")
        os.kill(links.process.pid, signal.SIGKILL)
        campaign.release("links")
        told = sorted((outcome.stage, outcome.status) for _, outcome in campaign.follow().failures)
        assert told == [("links", "failed"), *[("run", "blocked")] * 2, *[("solve", "blocked")] * 2]
        for stage, state in (("links", "FAILED"), ("solve", "COMPLETED"), ("run", "COMPLETED")):
            cluster.wait_for_state(campaign.job(stage), state)
        campaign.submit()
        assert campaign.follow().failures == []
        campaign.assert_complete()


def test_a_dependency_that_can_never_hold(cluster, talk_to):
    """Somebody makes the solves wait for the success of a job that is then cancelled: they do not wait for ever."""
    campaign = talk_to(cluster)
    campaign.hold("links")
    campaign.submit()
    other = cluster.sbatch("--hold", "--output=/dev/null", "--wrap=true")
    cluster.run("scontrol", "update", f"JobId={campaign.job('solve')}", f"Dependency=afterok:{other}")
    cluster.run("scancel", other)
    campaign.release("links")
    failures = campaign.follow().failures
    told = sorted((outcome.stage, outcome.status) for _, outcome in failures)
    assert told == [*[("run", "blocked")] * 2, *[("solve", "failed")] * 2]
    for _, outcome in failures:
        assert "waits for what will never be (DependencyNeverSatisfied)" in outcome.reason
    campaign.submit()
    assert campaign.follow().failures == []
    campaign.assert_complete()
