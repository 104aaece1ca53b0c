"""Slurm's words for jobs, as data: their states, and the job ids in which arrays are told.

Seen in the wild: `CANCELLED by 1000`, `OUT_OF_ME+`, `123+0`, `20_[2-7,12-17]`, `20_[1-9:2%4]`, `123_4.batch`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from crosspipe.errors import FieldError

Phase = Literal["waiting", "running", "ended"]

WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "POWER_UP_NODE",
        # what Slurm preempts it may start again: the queue shows it then; where it does not, the job is over
        "PREEMPTED",
    }
)
RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "UPDATE_DB", "EXPEDITING"}
)
ENDED = {
    "COMPLETED": "ended without a word about it",
    "CANCELLED": "was cancelled",
    "FAILED": "died",
    "TIMEOUT": "ran out of time",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "got a node that did not boot",
    "DEADLINE": "missed its deadline",
    "REVOKED": "was revoked",
    "LAUNCH_FAILED": "could not be launched",
    "RECONFIG_FAIL": "got a node that could not be configured",
}
NEVER = "DependencyNeverSatisfied"  # the reason of a job that waits in vain
_HELD = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_HELD_REASON = re.compile(r"held|hold", re.IGNORECASE)  # JobHeldAdmin, JobHoldMaxRequeue, "requeued held"
# what it asks for is more than anyone gets; limits on all of one's jobs together pass by themselves
_REFUSED_REASON = re.compile(
    r"BadConstraints|Partition(TimeLimit|NodeLimit|Config)|Invalid(Account|QOS)|PerJob(Limit)?$|QOS(Time|UsageThreshold)Limit"
)

_SHORT = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE",
    "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING", "SO": "STAGE_OUT", "ST": "STOPPED", "S": "SUSPENDED",
    "TO": "TIMEOUT",
}  # fmt: skip
_JOB = re.compile(r"(?P<job>\d+)(\+\d+)?(_(?P<index>\d+)|_\[(?P<indices>[\d,:-]+)(%\d+)?\])?(?P<step>\.\S+)?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


class JobId(NamedTuple):
    """A job, or one of an array."""

    job: str
    index: int | None = None

    def __str__(self) -> str:
        return self.job if self.index is None else f"{self.job}_{self.index}"


def state(text: str) -> str:
    """The state in what Slurm printed: `CANCELLED by 1000` is CANCELLED, `OUT_OF_ME+` OUT_OF_MEMORY, `PD` PENDING.

    A word that no Slurm up to 24.11 has is given back as it is; see `known`.
    """
    word = (text.split() or [""])[0].upper()
    known = (*WAITING, *RUNNING, *ENDED)
    if word in known:
        return word
    if word in _SHORT:
        return _SHORT[word]
    cut = [name for name in known if word.endswith("+") and name.startswith(word[:-1])]
    if len(cut) == 1:
        return cut[0]
    return word


def known(name: str) -> bool:
    """Whether we know what this state means."""
    return name in WAITING or name in RUNNING or name in ENDED


def phase(name: str) -> Phase:
    """Whether a job in this state waits, runs or is over. One that we do not know is taken for running: it is waited
    for, as long as the queue shows it."""
    if name in WAITING:
        return "waiting"
    return "ended" if name in ENDED else "running"


def held(name: str, reason: str) -> bool:
    """Whether a job in this state, waiting for this reason, starts only when a person lets it."""
    return name in _HELD or bool(phase(name) == "waiting" and _HELD_REASON.search(reason))


def refused(name: str, reason: str) -> bool:
    """Whether a job in this state, waiting for this reason, asks for what nobody gets here, and so never starts."""
    return phase(name) == "waiting" and bool(_REFUSED_REASON.search(reason))


def job_ids(text: str) -> tuple[JobId, ...]:
    """The jobs that a job id stands for: `20_[2-3,7%4]` is 20_2, 20_3 and 20_7. A step (`20.batch`) stands for none.

    FieldError for anything else, a list that Slurm has cut (`20_[1-5,...]`) too.
    """
    found = _JOB.fullmatch(text.strip())
    if found is None:
        raise FieldError("job id", text, "is no job id", "ask Slurm for whole ones: SLURM_BITSTR_LEN=0")
    if found["step"]:
        return ()
    job = found["job"]
    if found["indices"] is None:
        return (JobId(job, None if found["index"] is None else int(found["index"])),)
    indices: list[int] = []
    for part in found["indices"].split(","):
        one = _RANGE.fullmatch(part)
        if one is None:
            raise FieldError("job id", text, f"{part!r} is no range", "ask Slurm for whole ones")
        first, last, step = int(one[1]), int(one[2] or one[1]), int(one[3] or 1)
        indices += range(first, last + 1, step)
    return tuple(JobId(job, index) for index in indices)
