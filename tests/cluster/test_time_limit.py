"""A time limit that really comes: Slurm looks at limits every 30 s, and warns up to a minute early."""

from __future__ import annotations

import pytest
from slurm_campaigns import Campaign

EQUAL = {"name": "equal", "source": "given", "forward_ms": 10, "input_grad_ms": 10, "weight_grad_ms": 10}


@pytest.mark.timeout(300)
def test_a_search_that_outlives_its_jobs_limit(cluster, tmp_path, monkeypatch):
    """Warned, it goes on in another life for what is done, and ends by itself where a whole life brought nothing."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    resources = {stage: {"minutes": 5} for stage in ("links", "blocks", "run")}
    resources["solve"] = {"minutes": 1, "warning_s": 30, "setup": ["renice -n 19 $$"]}
    campaign = Campaign(
        cluster, tmp_path, "1f1b", "cross_ud", until="solve", costs=EQUAL, cluster__resources=resources,
        solver={"time_limit_s": 300.0, "workers": 1, "points_per_job": 2},
        network__delay=[3.7, 0.9], pipeline__stages=4, pipeline__microbatches=32, pipeline__memory_microbatches=5.0,
    )  # fmt: skip
    campaign.submit()
    job = campaign.job("solve")
    limit = "the time limit of 1 min came first; raise cluster.resources.solve.minutes"
    assert campaign.reasons() == {"solve cross_ud": limit}
    cluster.wait_for_state(job, "COMPLETED")  # and not TIMEOUT
    assert "Restarts=1 " in cluster.show(job)
    plan = campaign.plan()
    done, left = plan.graph.stage("solve")
    assert plan.store.done(done.request) is not None
    assert plan.store.holder(left.request).claim.released
    assert not list(plan.store.directory(left.request).glob(".*.work"))
