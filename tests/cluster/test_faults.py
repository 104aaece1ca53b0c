"""Faults injected into a real Slurm while a campaign runs: it ends complete, nothing is lost, nothing is made twice."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from crosspipe.campaign.status import campaign_status
from crosspipe.store.claims import process_started


def test_without_a_fault(campaign):
    assert len(campaign.submit()) == 5  # links, blocks, solve, run, report
    assert campaign.follow().failures == []
    campaign.assert_complete()
    assert campaign.submit() == []


def test_a_task_killed_with_9(campaign):
    """It is told as failed, what does not need it goes on, and a second call makes it."""
    campaign.hold("run")
    campaign.submit()
    victim = campaign.running("run", jobs=2)[0]
    os.kill(victim.process.pid, signal.SIGKILL)
    campaign.release("run")
    failures = campaign.follow().failures
    assert [outcome.stage for _, outcome in failures] == ["run"]
    campaign.submit()
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_a_job_requeued_by_the_administrator(campaign):
    campaign.hold("run")
    campaign.submit()
    job = campaign.running("run", jobs=2)[0].job
    campaign.cluster.run("scontrol", "requeue", job)
    campaign.running("run", jobs=3)
    campaign.release("run")
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_jobs_preempted_by_a_higher_partition(campaign):
    campaign.hold("run")
    campaign.submit()
    campaign.running("run", jobs=2)
    campaign.cluster.run("srun", "-p", "high", "-N4", "--exclusive", "sleep", "1")
    campaign.running("run", jobs=4)
    campaign.release("run")
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_scancel_in_the_middle(campaign):
    """One job of an array: its point is told as cancelled, the other one is done; a second call makes it."""
    campaign.hold("run")
    campaign.submit()
    job = campaign.running("run", jobs=2)[0].job
    campaign.cluster.run("scancel", job)
    campaign.release("run")
    failures = campaign.follow().failures
    assert len(failures) == 1
    assert failures[0][1].job == job
    campaign.submit()
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_cancelled_as_a_whole_then_begun_again(campaign, tmp_path):
    campaign.hold("run")
    campaign.submit()
    campaign.running("run", jobs=2)
    said = campaign.cluster.crosspipe(tmp_path, "cancel", str(campaign.directory)).stdout
    assert said == "ended 2 jobs and processes\n"  # the array of runs, and the report that waited for it
    campaign.cluster.wait(campaign.cluster.idle, "the end of all jobs")
    campaign.release("run")
    assert len(campaign.submit()) == 2
    assert campaign.follow().failures == []
    campaign.assert_complete()


def test_two_people_begin_the_same_work_at_once(campaign, tmp_path):
    """Each in a folder of their own, with one store: whatever both need is made by one of them."""
    other = copy.copy(campaign)
    other.directory = tmp_path / "other"
    with ThreadPoolExecutor() as threads:
        for submitted in threads.map(lambda each: each.submitter(), (campaign, other)):
            assert submitted.returncode == 0, submitted.stderr
    for each in (campaign, other):
        assert each.follow().failures == []
        each.assert_complete()


def test_the_controller_restarts(campaign):
    """While it is away nothing is known of jobs, which is no reason to give them up."""
    campaign.hold("solve")
    campaign.submit()
    campaign.running("solve", jobs=2)
    campaign.cluster.script("stop", "controller")
    campaign.release("solve")
    with ThreadPoolExecutor() as threads:
        followed = threads.submit(campaign.follow)
        time.sleep(12)  # the solves end, and cannot say so to the controller
        campaign.cluster.script("start", "controller")
        assert followed.result().failures == []
    campaign.assert_complete()


def test_a_node_daemon_killed_with_9(campaign):
    """Slurm gives the node up and starts its job elsewhere; the job that lives on there sees that it was replaced."""
    campaign.hold("run")
    campaign.submit()
    job = campaign.running("run", jobs=2)[0]
    campaign.cluster.script("kill", job.process.host)
    campaign.running("run", jobs=3)
    campaign.cluster.wait(lambda: process_started(job.process.pid) != job.process.process_started, "its end", 90)
    campaign.release("run")
    assert campaign.follow().failures == []
    campaign.assert_complete()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_submitter_killed_in_its_second_sbatch(campaign, tmp_path, moment):
    """Whether Slurm has got that job or not: the next call finds what is there and submits the rest."""
    campaign.hold("links")
    campaign.hold("blocks")
    real = shutil.which("sbatch")
    earlier = {number for number, _ in campaign.cluster.history()}
    calls, fake = tmp_path / "calls", tmp_path / "sbatch"
    submit = f'{real} "$@"; ' if moment == "after" else ""
    fake.write_text(f"""#!/bin/sh
        echo "$@" >> {calls}
        if [ "$(wc -l < {calls})" = 2 ]; then {submit} kill -9 $PPID; exit; fi
        exec {real} "$@"
    """)
    fake.chmod(0o755)
    killed = campaign.submitter(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    campaign.submit()
    campaign.release("links")
    campaign.release("blocks")
    assert campaign.follow().failures == []
    campaign.assert_complete()
    names = [name for number, name in campaign.cluster.history() if number not in earlier]
    assert sorted(name.split("-")[1] for name in names) == ["blocks", "links", "report", "run", "solve"]


def test_the_store_runs_full(start_cluster, talk_to, tmp_path):
    """The points that found no room say so and leave nothing half; with room again a second call makes them."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], check=True)
    try:
        with start_cluster() as cluster:  # after the mount, so that its nodes see it
            campaign = talk_to(cluster, store=small / "store")
            (campaign.orders / "megabytes").write_text("0.7")
            campaign.submit()
            failures = campaign.follow().failures
            assert failures
            assert any("No space left" in outcome.reason for _, outcome in failures), failures
            subprocess.run(["mount", "-o", "remount,size=30m", str(small)], check=True)
            before = campaign.plan()
            done = {f"{n.request.stage} {n.points[0]}" for r, n in before.graph.nodes.items() if r in before.cached}
            campaign.submit()
            assert campaign.follow().failures == []
            assert campaign_status(campaign.directory).complete
            made = campaign.trace("made")
            assert sorted(set(made)) == campaign.all
            assert [label for label in done if made.count(label) != 1] == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
