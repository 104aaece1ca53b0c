"""Following a campaign on a clock of its own: few questions to Slurm, and a word about jobs that died without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosspipe.campaign.driver import Plan, plan_campaign
from crosspipe.campaign.outcomes import REPORTED, write_outcome
from crosspipe.campaign.slurm import follow
from crosspipe.campaign.slurm.follow import follow_campaign, follow_report
from crosspipe.campaign.slurm.submit import submit_campaign

LONG_S = 1200.0


class Clock:
    """Seconds that pass when somebody sleeps; at certain ones something happens."""

    def __init__(self, happen: dict[float, Callable[[], Any]]) -> None:
        self.now_s = 1000.0
        self._happen = {self.now_s + at: what for at, what in happen.items()}

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for at in [at for at in self._happen if at <= self.now_s]:
            self._happen.pop(at)()


class Ears:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.said: set[str] = set()

    def begin(self, plan: Plan) -> None: ...

    def ended(self, node: Any, status: str, reason: str) -> None:
        self.heard.append((node.request.stage, status))

    def now(self, stage: str, text: str) -> None:
        self.said.add(text)


@pytest.fixture
def submitted(points: Callable[..., Any], slurm: Any, tmp_path: Path) -> Plan:
    plan = plan_campaign(points(cluster__executor="slurm", run__points_per_job=1))
    submit_campaign(plan, tmp_path / "c", lambda text: None)
    return plan


def all_jobs(slurm: Any, *state: str) -> Callable[[], None]:
    return lambda: slurm.say(**{f"j{job}": list(state) for job in slurm.jobs})


def test_long_in_the_queue_costs_a_question_a_minute(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def end() -> None:
        asked.append(slurm.calls["squeue"])
        all_jobs(slurm, "CANCELLED by 1000", "0:15")()

    monkeypatch.setattr(follow, "time", Clock({LONG_S: end}))
    ears = Ears()
    summary = follow_campaign(submitted, tmp_path / "c", ears)
    assert 22 <= asked[0] <= 30  # 3, 4.5, ... 60 s apart: 8 in the first 150 s, then 17
    assert slurm.calls["sacct"] <= 3
    assert sorted(ears.heard) == sorted(
        [("links", "failed"), ("blocks", "failed"), *[("solve", "failed")] * 4, *[("run", "failed")] * 4]
    )
    assert {outcome.reason for _, outcome in summary.failures} == {
        "its job 101 was cancelled (CANCELLED, exit code 0:15)",
        "its job 102 was cancelled (CANCELLED, exit code 0:15)",
        *(f"its job {job} was cancelled (CANCELLED, exit code 0:15)" for job in ("103_0", "103_1")),
        *(f"its job 104_{index} was cancelled (CANCELLED, exit code 0:15)" for index in range(4)),
    }


def test_without_accounting_it_is_asked_once(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.order("no-accounting")
    clock = Clock({10.0: lambda: slurm.say(j101=["GONE"]), LONG_S: all_jobs(slurm, "GONE")})
    monkeypatch.setattr(follow, "time", clock)
    assert len(follow_campaign(submitted, tmp_path / "c", Ears()).failures) == 10
    assert slurm.calls["sacct"] == 1


def test_preempted_and_requeued_is_no_end(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happen = {5.0: "PREEMPTED", 300.0: "RUNNING", 600.0: "FAILED"}
    clock = Clock({at: all_jobs(slurm, state) for at, state in happen.items()})
    monkeypatch.setattr(follow, "time", clock)
    follow_campaign(submitted, tmp_path / "c", Ears())
    assert clock.now_s - 1000.0 > 600.0


def test_a_job_that_waits_in_vain_is_cancelled_and_told(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.say(j104=["PENDING", "DependencyNeverSatisfied"])
    rest = {"j101": ["FAILED"], "j102": ["FAILED"], "j103": ["FAILED"]}
    monkeypatch.setattr(follow, "time", Clock({60.0: lambda: slurm.say(**rest)}))
    summary = follow_campaign(submitted, tmp_path / "c", Ears())
    reasons = [outcome.reason for node, outcome in summary.failures if node.request.stage == "run"]
    assert len(reasons) == 4
    assert all("waits for what will never be (DependencyNeverSatisfied)" in reason for reason in reasons)
    assert slurm.calls["scancel"] == 1


def test_a_controller_that_is_away_is_said_and_waited_for(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = Ears()
    clock = Clock({60.0: (slurm.folder / "away").unlink, 600.0: all_jobs(slurm, "FAILED")})
    monkeypatch.setattr(follow, "time", clock)
    slurm.order("away")
    assert len(follow_campaign(submitted, tmp_path / "c", ears).failures) == 10
    assert any("no word from Slurm: squeue failed" in text for text in ears.said)


@pytest.mark.parametrize(("order", "within_s"), [(None, (60.0, 140.0)), ("no-accounting", (5.0, 60.0))])
def test_accounting_has_a_minute_to_say_how_a_job_ended(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    order: str | None, within_s: tuple[float, float],
) -> None:  # fmt: skip
    if order is not None:
        slurm.order(order)
    clock = Clock({0.5: all_jobs(slurm, "GONE")})
    monkeypatch.setattr(follow, "time", clock)
    summary = follow_campaign(submitted, tmp_path / "c", Ears())
    assert {outcome.reason for _, outcome in summary.failures} >= {
        "its job 101 is no longer in the queue, and Slurm does not know how it ended"
    }
    assert within_s[0] <= clock.now_s - 1000.0 <= within_s[1]


def test_jobs_that_only_a_person_lets_go_are_not_followed_for_ever(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = {f"j{job}": ["PENDING", "Dependency"] for job in (103, 104, 105)}
    slurm.say(j101=["PENDING", "JobHeldAdmin"], j102=["RUNNING"], **rest)
    clock = Clock({300.0: lambda: slurm.say(j102=["FAILED"])})
    monkeypatch.setattr(follow, "time", clock)
    said: list[str] = []
    summary = follow_campaign(submitted, tmp_path / "c", Ears(), say=said.append)
    assert 300.0 <= clock.now_s - 1000.0 <= 480.0  # three questions, a minute apart, after that
    assert [node.request.stage for node, _ in summary.failures] == ["blocks"]
    assert said == ["job 101 is held (JobHeldAdmin): scontrol release 101 lets it go, scancel gives it up"]
    assert follow_report(tmp_path / "c", submitted.store, 5.0) is None  # nor is the report, which waits for them


def test_a_job_that_asks_for_more_than_anyone_gets_is_not_followed_for_ever(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.say(
        j101=["PENDING", "PartitionTimeLimit"], **{f"j{job}": ["PENDING", "Dependency"] for job in range(102, 106)}
    )
    monkeypatch.setattr(follow, "time", Clock({}))
    said: list[str] = []
    summary = follow_campaign(submitted, tmp_path / "c", Ears(), say=said.append)
    assert summary.outcomes == {}
    (words,) = said
    assert words.startswith("job 101 asks for what nobody gets here (PartitionTimeLimit): it will not start; cancel")


def test_the_report_is_waited_for(submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = tmp_path / "c"
    all_jobs(slurm, "COMPLETED")()
    slurm.say(j105=["RUNNING"])
    done = {45.0: lambda: write_outcome(campaign, REPORTED, "done", log="logs/105_0_log.out", job="105")}
    clock = Clock(done)
    monkeypatch.setattr(follow, "time", clock)
    outcome = follow_report(campaign, submitted.store, 5.0)
    assert outcome is not None
    assert outcome.status == "done"
    assert 45.0 <= clock.now_s - 1000.0 <= 47.0
    assert slurm.calls["squeue"] <= 6  # 3, 4.5, 6.75 ... s apart


def test_a_report_whose_job_died_says_so(
    submitted: Plan, slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.say(j105=["NODE_FAIL"])
    monkeypatch.setattr(follow, "time", Clock({}))
    outcome = follow_report(tmp_path / "c", submitted.store, 5.0)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == ("failed", "its job 105 lost its node (NODE_FAIL)")
    assert outcome.log == "logs/105_0_log.out"
