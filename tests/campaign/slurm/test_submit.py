"""Submission: few calls, nothing twice, and a submitter that may be killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from crosspipe.campaign.driver import Summary, plan_campaign
from crosspipe.campaign.launch import carry_out, launch
from crosspipe.campaign.points import make_points
from crosspipe.campaign.slurm import journal
from crosspipe.campaign.slurm import submit as submit_module
from crosspipe.campaign.slurm.queue import SlurmError
from crosspipe.campaign.slurm.script import batch_script
from crosspipe.campaign.slurm.submit import submit_campaign
from crosspipe.campaign.status import campaign_status, cancel_campaign
from crosspipe.campaign.tasks import Task
from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.store import Store, claims, load, my_claim
from crosspipe.store.campaign_file import Outcome

Points = Callable[..., Any]


def submit(points: Any, directory: Path) -> Any:
    return submit_campaign(plan_campaign(points), directory, lambda text: None)


def references(directory: Path, slurm: Any) -> Counter[str]:
    """How often each artifact is going to be made."""
    tasks = [load(directory / "tasks" / f"{task}.json", Task) for task in slurm.tasks()]
    return Counter(reference for task in tasks for reference in task.references)


def test_the_graph_becomes_one_array_per_stage_and_the_report(points: Points, slurm: Any, tmp_path: Path) -> None:
    submitted = submit(points(cluster__executor="slurm", run__points_per_job=1), tmp_path / "c")
    assert [(job["count"], job["after"]) for job in slurm.jobs.values()] == [
        (1, []), (1, []), (2, ["101", "102"]), (4, ["102", "103"]), (1, ["101", "102", "103", "104"]),
    ]  # fmt: skip
    assert [(entry.stage, entry.job) for entry in submitted.new] == [
        ("links", "101"), ("blocks", "102"), ("solve", "103"), ("run", "104"), ("report", "105"),
    ]  # fmt: skip
    assert [entry.job for entry in journal.submissions(tmp_path / "c")] == [entry.job for entry in submitted.new]


def test_what_is_submitted_is_the_golden_text(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm", run__points_per_job=1), tmp_path / "c")
    entry = journal.submissions(tmp_path / "c")[3]
    task = load(tmp_path / "c" / "tasks" / f"{entry.tasks[0]}.json", Task)
    path = journal.path_of(tmp_path / "c", entry)
    text = batch_script(
        task.resources, name=entry.name, count=4, logs=tmp_path / "c" / "logs", submission=path, after=entry.after
    )
    assert slurm.jobs["104"]["text"] == text


def test_an_array_is_split_at_the_sites_limit(
    points: Points, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_LARGEST", "3")
    submit(points(cluster__executor="slurm", run__points_per_job=1), tmp_path / "c")
    assert [job["count"] for job in slurm.jobs.values()] == [1, 1, 2, 3, 1, 1]


def test_a_thousand_points_take_few_calls_and_little_time(
    config: dict[str, Any], change: Callable[..., Any], slurm: Any, tmp_path: Path
) -> None:
    configs, overrides = [], []
    base = change(config, cluster__executor="slurm", solver__points_per_job=12)
    for number in range(250):
        for schedule in ("1f1b", "zbh1", "zbh2", "cross_ud"):
            configs.append(change(base, schedule__name=schedule, network__delay=[number / 100, 0.25]))
            overrides.append([f"schedule={schedule}", f"network.delay=[{number / 100},0.25]"])
    began_s = time.process_time()  # of this process: sbatch's own time is the site's
    submit(make_points(configs, overrides), tmp_path / "c")
    spent_s = time.process_time() - began_s
    assert slurm.calls["sbatch"] == 5
    assert [job["count"] for job in slurm.jobs.values()] == [1, 1, 84, 250, 1]  # 1000 / 12 and 1000 / 4, rounded up
    assert slurm.calls["squeue"] + slurm.calls["sacct"] == 0
    assert spent_s < 5, f"planning and submitting took {spent_s:.1f} s of processor time"


def test_called_again_nothing_is_submitted_twice(points: Points, slurm: Any, tmp_path: Path) -> None:
    few = points(cluster__executor="slurm")
    submit(few, tmp_path / "c")
    slurm.say(j101=["RUNNING"])
    again = submit(few, tmp_path / "c")
    assert again.new == ()
    assert len(again.in_flight) == 10
    assert slurm.calls["squeue"] == 1  # one question for the whole campaign
    assert set(references(tmp_path / "c", slurm).values()) == {1}


def test_what_died_is_submitted_again_after_what_still_lives(points: Points, slurm: Any, tmp_path: Path) -> None:
    few = points(cluster__executor="slurm", solver__points_per_job=1)
    submit(few, tmp_path / "c")
    slurm.say(j101=["RUNNING"], j102=["NODE_FAIL"], j103_1=["FAILED", "0:9"])
    again = submit(few, tmp_path / "c")
    assert [(entry.stage, len(entry.tasks), entry.after) for entry in again.new] == [
        ("blocks", 1, ()),
        ("solve", 1, ("106", "101")),
        ("report", 1, ("106", "107", "101", "103", "104")),
    ]
    assert again.new[0].tasks == ("blocks-001",)  # a living job may still read the others


def test_a_job_that_waits_in_vain_is_cancelled_and_submitted_again(points: Points, slurm: Any, tmp_path: Path) -> None:
    few = points(cluster__executor="slurm")
    submit(few, tmp_path / "c")
    slurm.say(j104=["PENDING", "DependencyNeverSatisfied"])
    status = campaign_status(tmp_path / "c")
    assert [stage.failed for stage in status.stages] == [0, 0, 0, 4, 0]
    assert "waits for what will never be (DependencyNeverSatisfied)" in status.troubles[0].outcome.reason
    again = submit(few, tmp_path / "c")
    assert [entry.stage for entry in again.new] == ["run", "report"]
    assert json.loads((slurm.folder / "states.json").read_text())["104"] == ["CANCELLED"]


def test_a_refusal_is_said_and_the_next_call_goes_on(
    points: Points, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = points(cluster__executor="slurm")
    slurm.order("refuse")
    with pytest.raises(SlurmError, match=r"sbatch refused links \(1 job\): .*AssocMaxSubmitJobLimit") as caught:
        submit(few, tmp_path / "c")
    assert str(caught.value).count("AssocMaxSubmitJobLimit") == 1
    assert f"; change cluster.resources.links and run it again with campaign_dir={tmp_path / 'c'}" in str(caught.value)
    status = campaign_status(tmp_path / "c")
    assert status.stages[0].failed == 1
    assert "sbatch refused links (1 job): " in status.troubles[0].outcome.reason
    monkeypatch.setattr(submit_module, "_SETTLE_S", 0.1)
    (slurm.folder / "refuse").unlink()
    assert len(submit(few, tmp_path / "c").new) == 5
    assert [entry.job for entry in journal.submissions(tmp_path / "c")] == ["101", "102", "103", "104", "105"]


def test_an_sbatch_that_fails_and_made_a_job_all_the_same_is_found_and_nothing_is_made_twice(
    points: Points, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_module, "_SETTLE_S", 0.1)
    few = points(cluster__executor="slurm")
    slurm.order("no-answer-3")
    with pytest.raises(SlurmError, match="Socket timed out"):
        submit(few, tmp_path / "c")
    assert [entry.stage for entry in submit(few, tmp_path / "c").new] == ["run", "report"]
    assert set(references(tmp_path / "c", slurm).values()) == {1}
    assert len({job["entry"] for job in slurm.jobs.values()}) == 5


def test_cancel_reaches_a_job_whose_number_was_never_told(
    points: Points, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_module, "_SETTLE_S", 0.1)
    slurm.order("no-answer-1")
    with pytest.raises(SlurmError, match="Socket timed out"):
        submit(points(cluster__executor="slurm"), tmp_path / "c")
    assert cancel_campaign(tmp_path / "c") == 1
    calls = (slurm.folder / "calls").read_text().splitlines()
    assert "scancel 101" in calls
    (asked,) = [call for call in calls if call.startswith("sacct")]
    since = time.strptime(asked.partition("--starttime=")[2].split()[0], "%Y-%m-%dT%H:%M:%S")
    assert 100 < time.time() - time.mktime(since) < 600  # before it was submitted, whatever day that was


def test_cancel_lets_a_submitter_through_first(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    said: list[str] = []
    with ThreadPoolExecutor() as threads:
        with submit_module._only_submitter(tmp_path / "c", lambda text: None):
            cancelled = threads.submit(cancel_campaign, tmp_path / "c", say=said.append)
            deadline = time.monotonic() + 30
            while not said:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert slurm.calls["scancel"] == 0
        assert cancelled.result(timeout=30) == 5
    assert "is submitting for" in said[0]


def test_an_array_that_is_taken_for_never_submitted_shares_its_file_with_no_later_one(tmp_path: Path) -> None:
    first = journal.intend(tmp_path, "solve", ["solve-000"], ())
    journal.forget(tmp_path, first)
    second = journal.intend(tmp_path, "solve", ["solve-001"], ())
    assert second.number == first.number
    assert journal.path_of(tmp_path, first) != journal.path_of(tmp_path, second)
    late = subprocess.run(
        [sys.executable, "-m", "crosspipe.campaign.slurm.job", str(journal.path_of(tmp_path, first))],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (late.returncode, "is no longer wanted" in late.stdout) == (0, True)


def test_the_journal_is_in_the_order_of_submission_beyond_a_thousand(tmp_path: Path) -> None:
    for number in (1000, 2, 999):
        entry = journal.intend(tmp_path, "run", [f"run-{number}"], ())
        journal.forget(tmp_path, entry)
        journal.write(tmp_path, msgspec.structs.replace(entry, number=number))
    assert [entry.number for entry in journal.submissions(tmp_path)] == [2, 999, 1000]


def test_before_anything_is_written_slurm_is_asked_and_says_one_line(
    points: Points, slurm: Any, config: dict[str, Any], change: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.order("unconfigured")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError) as refused:
        launch([change(config, cluster__executor="slurm")], [[]], Console())
    assert str(refused.value) == (
        "cluster.executor = 'slurm': Slurm does not answer here (fatal: Could not establish a configuration source); "
        "log in to a node of the cluster, try again later, or use cluster=local"
    )
    assert list((tmp_path / "here").iterdir()) == []
    assert not Path(config["store"]).exists()
    with pytest.raises(UsageError, match="Slurm does not answer"):
        submit(points(cluster__executor="slurm"), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_what_a_user_filters_queues_by_does_not_hide_our_jobs(
    points: Points, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    few = points(cluster__executor="slurm")
    submit(few, tmp_path / "c")
    assert submit(few, tmp_path / "c").new == ()


def test_points_that_nobody_heard_of_are_not_done(
    points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("crosspipe.campaign.launch.hand_over", lambda *given: None)
    monkeypatch.setattr(
        "crosspipe.campaign.launch._follow", lambda plan, directory, *given: (Summary(plan, directory, {}), None)
    )
    monkeypatch.setattr("crosspipe.campaign.launch.show_report", lambda *given, **options: None)
    plan = plan_campaign(points(cluster__executor="slurm", until="profile", wait=True))
    assert carry_out(plan, tmp_path / "c", Console(width=200)) == 1
    assert "0 of 4 points done" in capsys.readouterr().out


@pytest.mark.parametrize("order", [f"kill-{when}-{call}" for when in ("before", "after") for call in (1, 3, 5)])
def test_a_submitter_killed_between_two_calls_loses_nothing_and_doubles_nothing(
    config: dict[str, Any], change: Callable[..., Any], slurm: Any, tmp_path: Path, order: str
) -> None:
    base = change(config, cluster__executor="slurm")
    configs = [change(base, schedule__name=name) for name in ("1f1b", "zbh1")]
    pairs = [["schedule=1f1b"], ["schedule=zbh1"]]
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom crosspipe.campaign.driver import plan_campaign\n"
        "from crosspipe.campaign.points import make_points\n"
        "from crosspipe.campaign.slurm.submit import submit_campaign\n"
        "submit_campaign(plan_campaign(make_points(*json.loads(sys.argv[1]))), Path(sys.argv[2]), print)"
    )
    slurm.order(order)
    first = subprocess.run(
        [sys.executable, "-c", code, json.dumps([configs, pairs]), str(tmp_path / "c")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
        capture_output=True,
    )
    assert first.returncode == -signal.SIGKILL, first.stderr
    call = int(order[-1])
    assert len(slurm.jobs) == (call - 1 if "before" in order else call)
    (slurm.folder / order).unlink()
    submit(make_points(configs, pairs), tmp_path / "c")
    assert all(entry.job for entry in journal.submissions(tmp_path / "c"))
    made = references(tmp_path / "c", slurm)
    assert Counter(reference.partition("/")[0] for reference in made) == {"links": 1, "blocks": 1, "solve": 2, "run": 2}
    assert set(made.values()) == {1}
    assert [journal_entry.stage for journal_entry in journal.submissions(tmp_path / "c")][-1] == "report"
    assert len([task for task in slurm.tasks() if task.startswith("report")]) == 1


def test_status_tells_the_queue_and_how_jobs_ended(points: Points, slurm: Any, tmp_path: Path) -> None:
    few = points(cluster__executor="slurm", run__points_per_job=1)
    submit(few, tmp_path / "c")
    plan = plan_campaign(few)
    (links,) = plan.graph.stage("links")
    claim = my_claim("101")
    store = Store(plan.store.root)
    store.claim(links.request, claim)
    slurm.say(j101=["RUNNING"], j102=["OUT_OF_MEMORY", "0:125"], j104=["PENDING", "Dependency"])
    status = campaign_status(tmp_path / "c")
    assert [(s.stage, s.done, s.running, s.waiting, s.failed) for s in status.stages] == [
        ("links", 0, 1, 0, 0), ("blocks", 0, 0, 0, 1), ("solve", 0, 0, 4, 0), ("run", 0, 0, 4, 0),
        ("report", 0, 0, 1, 0),
    ]  # fmt: skip
    assert status.stages[0].now == "101 on n1, logs/101_0_log.out"
    assert status.stages[3].now == "4 in the queue (Dependency)"
    (trouble,) = status.troubles
    assert trouble.outcome.reason == "its job 102 ran out of memory (OUT_OF_MEMORY, exit code 0:125)"
    assert trouble.log == tmp_path / "c" / "logs" / "102_0_log.out"
    assert not status.finished
    assert slurm.calls["squeue"] == 1
    assert slurm.calls["sacct"] == 1


def test_without_accounting_a_job_that_is_gone_is_over(points: Points, slurm: Any, tmp_path: Path) -> None:
    slurm.order("no-accounting")
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    slurm.say(**{f"j{number}": ["GONE"] for number in range(101, 106)})
    status = campaign_status(tmp_path / "c")
    assert [stage.failed for stage in status.stages] == [1, 1, 4, 4, 1]
    assert status.notes == ("accounting is off here: how a job died that could not say so itself is not known",)
    assert "is no longer in the queue" in status.troubles[0].outcome.reason
    assert status.finished


def test_status_without_a_controller_says_so_and_what_it_knows(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    slurm.order("away")
    status = campaign_status(tmp_path / "c")
    assert [stage.waiting for stage in status.stages] == [1, 1, 4, 4, 1]
    assert "Unable to contact slurm controller" in status.unheard
    assert not status.finished


def test_another_job_of_the_same_number_from_last_year_is_not_ours(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    jobs = slurm.jobs
    for job in jobs.values():
        job["at"] = "2025-01-31T12:00:00"
    (slurm.folder / "jobs.json").write_text(json.dumps(jobs))
    slurm.say(j101=["COMPLETED"])
    assert "and Slurm does not know how it ended" in campaign_status(tmp_path / "c").troubles[0].outcome.reason


def test_what_needs_a_job_that_can_never_start_is_blocked(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    slurm.say(j101=["PENDING", "DependencyNeverSatisfied"], j102=["RUNNING"], j103=["PENDING", "Dependency"])
    status = campaign_status(tmp_path / "c")
    counts = [(s.stage, s.waiting, s.failed, s.blocked) for s in status.stages]
    assert counts == [
        ("links", 0, 1, 0), ("blocks", 1, 0, 0), ("solve", 0, 0, 4), ("run", 0, 0, 4), ("report", 1, 0, 0),
    ]  # fmt: skip
    why = "its input links cannot come: its job 101 waits for what will never be (DependencyNeverSatisfied)"
    assert {trouble.outcome.reason for trouble in status.troubles[1:]} == {why}


def test_no_more_at_once_than_asked_for_those_of_an_earlier_call_among_them(
    points: Points, change: Callable[..., Any], config: dict[str, Any], slurm: Any, tmp_path: Path
) -> None:
    base = change(config, cluster__executor="slurm", run__points_per_job=1)
    base["cluster"]["resources"]["run"]["at_once"] = 1
    configs = [change(base, schedule__name=name) for name in ("1f1b", "zbh1")]
    plan = plan_campaign(make_points(configs, [["schedule=1f1b"], ["schedule=zbh1"]]))
    submit_campaign(plan, tmp_path / "c", lambda text: None)
    first = len(slurm.jobs)
    slurm.say(**{f"j{name}_0": ["FAILED"] for name, job in slurm.jobs.items() if "run" in Path(job["entry"]).stem})
    submit_campaign(plan, tmp_path / "c", lambda text: None)
    later = [job for job in list(slurm.jobs.values())[first:] if "run" in Path(job["entry"]).stem]
    assert len(later) == 1
    assert "afterany" in later[0]["text"]


def test_held_jobs_are_said_and_are_no_work(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    slurm.say(**{f"j{job}": ["PENDING", "Dependency"] for job in (103, 104, 105)})
    slurm.say(j101=["PENDING", "JobHeldAdmin"], j102=["RUNNING"])
    assert not campaign_status(tmp_path / "c").finished
    slurm.say(j102=["PENDING", "JobHeldUser"])
    status = campaign_status(tmp_path / "c")
    assert status.finished
    assert [note.partition(":")[0] for note in status.notes] == [
        "job 101 is held (JobHeldAdmin)", "job 102 is held (JobHeldUser)",
    ]  # fmt: skip


def test_looking_again_reads_no_task_again(
    points: Points, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(points(cluster__executor="slurm", run__points_per_job=1, solver__points_per_job=1), tmp_path / "c")
    campaign_status(tmp_path / "c")
    read: list[str] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.parent.name), whole(path))[1])
    campaign_status(tmp_path / "c")
    assert sorted(read) == ["c", *["submissions"] * 5]  # campaign.json and the journal, once each


def test_a_new_report_takes_the_place_of_one_that_does_not_wait_for_all(
    points: Points, slurm: Any, tmp_path: Path
) -> None:
    few = points(cluster__executor="slurm")
    submit(few, tmp_path / "c")
    slurm.say(j102=["NODE_FAIL"])
    assert [entry.stage for entry in submit(few, tmp_path / "c").new] == ["blocks", "report"]
    assert "scancel 105" in (slurm.folder / "calls").read_text().splitlines()
    assert [stage.waiting for stage in campaign_status(tmp_path / "c").stages] == [1, 1, 4, 4, 1]


def test_what_the_reports_job_found_is_printed_and_not_built_again(
    points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = Outcome(stage="report", key="report", status="done", log="logs/105_0_log.out", job="105")
    monkeypatch.setattr("crosspipe.campaign.launch.hand_over", lambda *given: None)
    monkeypatch.setattr(
        "crosspipe.campaign.launch._follow", lambda plan, directory, *given: (Summary(plan, directory, {}), ended)
    )
    (tmp_path / "c" / "jobs").mkdir(parents=True)
    (tmp_path / "c" / "jobs" / "report.txt").write_text("the table\nreport: c/report/report.html\n")
    plan = plan_campaign(points(cluster__executor="slurm", wait=True))
    assert carry_out(plan, tmp_path / "c", Console(width=200)) == 1  # no artifact is there
    out = capsys.readouterr().out
    assert "the table\nreport: c/report/report.html\n0 of 4 points done" in out
    ended = msgspec.structs.replace(ended, status="failed", reason="strict=true, and there are 2 findings")
    with pytest.raises(CrosspipeError, match=r"strict=true, and there are 2 findings; log: .*105_0_log"):
        carry_out(plan, tmp_path / "c", Console(width=200))


def test_a_percent_sign_in_a_path_is_no_pattern_of_sbatch(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm", run__points_per_job=1), tmp_path / "100%done")
    texts = {name: job["text"] for name, job in slurm.jobs.items()}
    assert f"#SBATCH --output={tmp_path}/100%%done/logs/%j_0_log.out\n" in texts["101"]
    assert f"#SBATCH --output={tmp_path}/100%%done/logs/%A_%a_0_log.out\n" in texts["104"]


def test_cancel_is_one_call_for_all(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm"), tmp_path / "c")
    assert cancel_campaign(tmp_path / "c") == 5
    assert slurm.calls["scancel"] == 1
    assert campaign_status(tmp_path / "c").finished


def test_the_stages_are_submitted_in_the_order_of_the_road(points: Points, slurm: Any, tmp_path: Path) -> None:
    submit(points(cluster__executor="slurm", until="profile"), tmp_path / "c")
    assert [Path(job["entry"]).stem[:-9] for job in slurm.jobs.values()] == ["000-links", "001-blocks", "002-report"]


def test_a_submitter_lost_with_its_login_node_is_waited_for_no_longer_than_an_sbatch_takes(
    points: Points, slurm: Any, tmp_path: Path
) -> None:
    few = points(cluster__executor="slurm", until="profile")
    place = tmp_path / "c" / "submissions"
    place.mkdir(parents=True)
    claims.take(place, msgspec.structs.replace(my_claim(), host="login2"))
    minutes_ago = time.time() - 200
    os.utime(place / "claim.json", (minutes_ago, minutes_ago))
    assert len(submit(few, tmp_path / "c").new) == 3
    assert list(place.glob("claim*.json")) == []


def test_a_submitter_that_was_overtaken_leaves_the_others_claim(tmp_path: Path) -> None:
    place, other = tmp_path / "submissions", msgspec.structs.replace(my_claim(), host="login2")
    with submit_module._only_submitter(tmp_path, lambda text: None):
        claims.take(place, other, lambda claim, silent_s: False)
    held = claims.current(place)
    assert held is not None
    assert held.claim == other
