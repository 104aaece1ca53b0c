"""Every state and job id that Slurm was seen to print, and what it means."""

from __future__ import annotations

import pytest

from crosspipe.campaign.slurm.queue import JobState
from crosspipe.campaign.slurm.states import ENDED, RUNNING, WAITING, JobId, held, job_ids, known, phase, refused, state
from crosspipe.errors import FieldError


@pytest.mark.parametrize(
    ("printed", "meant", "then"),
    [
        ("PENDING", "PENDING", "waiting"),
        ("PD", "PENDING", "waiting"),
        ("CONFIGURING", "CONFIGURING", "waiting"),
        ("REQUEUED", "REQUEUED", "waiting"),
        ("REQUEUE_HOLD", "REQUEUE_HOLD", "waiting"),
        ("SPECIAL_EXIT", "SPECIAL_EXIT", "waiting"),
        ("PREEMPTED", "PREEMPTED", "waiting"),  # it may be started again
        ("RUNNING", "RUNNING", "running"),
        ("R", "RUNNING", "running"),
        ("COMPLETING", "COMPLETING", "running"),
        ("SUSPENDED", "SUSPENDED", "running"),
        ("COMPLETED", "COMPLETED", "ended"),
        ("CANCELLED", "CANCELLED", "ended"),
        ("CANCELLED by 1000", "CANCELLED", "ended"),
        ("CANCELLED+", "CANCELLED", "ended"),
        ("FAILED", "FAILED", "ended"),
        ("TIMEOUT", "TIMEOUT", "ended"),
        ("NODE_FAIL", "NODE_FAIL", "ended"),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", "ended"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", "ended"),
        ("OOM", "OUT_OF_MEMORY", "ended"),
        ("BOOT_FAIL", "BOOT_FAIL", "ended"),
        ("DEADLINE", "DEADLINE", "ended"),
        ("REVOKED", "REVOKED", "ended"),
    ],
)
def test_every_state_has_its_phase(printed: str, meant: str, then: str) -> None:
    assert state(printed) == meant
    assert phase(meant) == then


def test_no_state_is_of_two_phases_and_an_unknown_one_is_waited_for() -> None:
    assert not WAITING & RUNNING
    assert not (WAITING | RUNNING) & set(ENDED)
    for word in ("", "SLEEPING", "RE+"):  # RE+: RESIZING, REQUEUED, ... may all be meant
        assert state(word) == word
        assert not known(word)
        assert phase(word) == "running"
        assert JobState(word, queued=False).phase == "ended"


@pytest.mark.parametrize(
    ("name", "reason", "then"),
    [
        ("PENDING", "JobHeldAdmin", True),
        ("PENDING", "JobHeldUser", True),
        ("PENDING", "launch failed requeued held", True),
        ("PENDING", "JobHoldMaxRequeue", True),
        ("PENDING", "BadConstraints", False),
        ("REQUEUE_HOLD", "", True),
        ("SPECIAL_EXIT", "", True),
        ("PENDING", "Priority", False),
        ("PENDING", "Dependency", False),
        ("PENDING", "ReqNodeNotAvail, May be reserved for other job", False),
        ("RUNNING", "", False),
    ],
)
def test_what_only_a_person_lets_go(name: str, reason: str, then: bool) -> None:
    assert held(name, reason) is then


@pytest.mark.parametrize(
    ("reason", "then"),
    [
        *((reason, True) for reason in (
            "BadConstraints", "PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "InvalidQOS",
            "InvalidAccount", "QOSTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit",
            "AssocMaxCpuPerJobLimit",
        )),
        *((reason, False) for reason in (
            "Priority", "Resources", "Dependency", "AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit", "PartitionDown",
            "ReqNodeNotAvail, May be reserved for other job", "JobHeldUser", "JobArrayTaskLimit",
        )),
    ],
)  # fmt: skip
def test_what_asks_for_more_than_anyone_gets(reason: str, then: bool) -> None:
    assert refused("PENDING", reason) is then
    assert not refused("RUNNING", reason)


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("123", ["123"]),
        ("123_4", ["123_4"]),
        ("123+0", ["123"]),  # the first part of a heterogeneous job
        ("20_[2-4,7]", ["20_2", "20_3", "20_4", "20_7"]),
        ("20_[2-7,12-17]", [f"20_{i}" for i in (2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17)]),
        ("20_[1-9%4]", [f"20_{i}" for i in range(1, 10)]),
        ("20_[1-9:4%2]", ["20_1", "20_5", "20_9"]),
        ("123.batch", []),
        ("123_4.0", []),
        ("123.extern", []),
    ],
)
def test_a_job_id_may_stand_for_many(printed: str, meant: list[str]) -> None:
    assert [str(job) for job in job_ids(printed)] == meant


@pytest.mark.parametrize("printed", ["", "job", "20_[1-5,...]", "20_[", "20_[1-5,]", "None assigned"])
def test_what_is_no_job_id_is_refused(printed: str) -> None:
    with pytest.raises(FieldError, match="job id"):
        job_ids(printed)


def test_what_the_queue_no_longer_shows_is_over_whatever_accounting_says() -> None:
    assert JobState("PREEMPTED").phase == "waiting"
    assert JobState("PREEMPTED", queued=False).phase == "ended"
    assert JobState("RUNNING", queued=False).phase == "ended"  # accounting lags
    assert JobState("PENDING", "DependencyNeverSatisfied").in_vain
    assert not JobState("PENDING", "Dependency").in_vain
    assert JobState("FAILED", nodes="n1", exit_code="0:9", queued=False).how() == "died (FAILED, exit code 0:9) on n1"
    assert JobId("5", 0) != JobId("5")
