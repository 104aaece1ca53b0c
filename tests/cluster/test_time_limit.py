"""A time limit that really comes: Slurm looks at limits every 30 s, and warns up to a minute early."""

from __future__ import annotations

import pytest
from slurm_campaigns import Campaign

M70 = {"name": "m70", "source": "given", "forward_ms": 38, "input_grad_ms": 46, "weight_grad_ms": 21}


@pytest.mark.timeout(300)
def test_a_search_that_outlives_its_jobs_limit(cluster, tmp_path, monkeypatch):
    """Warned, it goes on in another life for what is done, and ends by itself where a whole life brought nothing."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    resources = {stage: {"minutes": 5} for stage in ("links", "blocks", "run")}
    resources["solve"] = {"minutes": 1, "warning_s": 30, "setup": ["renice -n 5 $$"]}
    campaign = Campaign(
        cluster, tmp_path, "1f1b", "cross_wave", until="solve", costs=M70, cluster__resources=resources,
        solver={"time_limit_s": 300.0, "workers": 1, "points_per_job": 2},
        model__layers=32, network__delay=[0.25, 0.25],
        pipeline__stages=16, pipeline__microbatches=32, pipeline__memory_microbatches=16.0,
    )  # fmt: skip  # a gap of 2 % is left after a minute on two cores: nothing proves this one early
    campaign.submit()
    job = campaign.job("solve")
    limit = "the time limit of 1 min came first; raise cluster.resources.solve.minutes"
    assert campaign.reasons() == {"solve cross_wave": limit}
    cluster.wait_for_state(job, "COMPLETED")  # and not TIMEOUT
    assert "Restarts=1 " in cluster.show(job)
    plan = campaign.plan()
    done, left = plan.graph.stage("solve")
    assert plan.store.done(done.request) is not None
    assert plan.store.holder(left.request).claim.released
    assert not list(plan.store.directory(left.request).glob(".*.work"))
