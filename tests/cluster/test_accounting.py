"""A campaign on a cluster with accounting, where only `sacct` knows how a job ended that could not say so itself."""

from __future__ import annotations

import os
import re
import signal

from crosspipe.campaign.status import campaign_status


def test_jobs_that_were_preempted_then_cancelled_or_killed(accounted, talk_to):
    """Both of an array lose their nodes and start again; how each ended then is told as Slurm's accounting has it."""
    campaign = talk_to(accounted)
    campaign.hold("run")
    campaign.submit()
    campaign.running("run", jobs=2)
    accounted.run("srun", "-p", "high", "-N4", "--exclusive", "sleep", "1")
    cancelled, killed = campaign.running("run", jobs=4)
    assert campaign_status(campaign.directory).troubles == ()
    accounted.run("scancel", cancelled.job)
    os.kill(killed.process.pid, signal.SIGKILL)
    campaign.release("run")
    reasons = {outcome.job: outcome.reason for _, outcome in campaign.follow().failures}
    assert reasons.keys() == {cancelled.job, killed.job}
    nodes = r"on dc0n\d,dc1n\d"
    how = rf"its job {cancelled.job} was cancelled \(CANCELLED(, exit code \d+:\d+)?\) {nodes}"
    assert re.fullmatch(how, reasons[cancelled.job])
    assert re.fullmatch(rf"its job {killed.job} died \(FAILED, exit code 0:9\) {nodes}", reasons[killed.job])
    campaign.submit()
    assert campaign.follow().failures == []
    campaign.assert_complete()
