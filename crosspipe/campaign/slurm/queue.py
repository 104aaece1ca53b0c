"""What Slurm says of jobs: one `squeue` for all of them, and one `sacct` for those it no longer shows.

A number may have been another job's long ago: what was submitted before ours is not ours. Without accounting, states of
ended jobs are not known; the artifacts and outcomes of a campaign say how they ended. That it is off is said once.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from crosspipe.campaign.slurm.states import ENDED, NEVER, JobId, Phase, held, job_ids, known, phase, refused, state
from crosspipe.errors import CrosspipeError

SKEW_S = 120.0  # by how much the clocks of two machines may differ
_TIMEOUT_S = 60.0
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS")  # a user's own, for the eye


class SlurmError(CrosspipeError):
    """A Slurm command failed; the message is what it said."""


class JobState(NamedTuple):
    """A job: its state in Slurm's word, the reason it waits, its nodes, its exit code (`1:0`) if it ended.

    `queued` is whether the queue still shows it. Where it does not, the job is over whatever accounting says: that
    lags, and of a job that was preempted and not started again it says nothing else.
    """

    state: str
    reason: str = ""
    nodes: str = ""
    exit_code: str = ""
    queued: bool = True

    @property
    def phase(self) -> Phase:
        """Whether it waits, runs or is over."""
        return phase(self.state) if self.queued else "ended"

    @property
    def in_vain(self) -> bool:
        """Whether it waits for what will never be."""
        return self.queued and self.reason == NEVER

    @property
    def held(self) -> bool:
        """Whether it waits for a person to let it go."""
        return self.queued and held(self.state, self.reason)

    @property
    def refused(self) -> bool:
        """Whether it asks for what nobody gets here."""
        return self.queued and refused(self.state, self.reason)

    def how(self) -> str:
        """How an ended job ended, in words."""
        if self == GONE:
            return "is no longer in the queue, and Slurm does not know how it ended"
        word = ENDED.get(self.state, "is no longer in the queue")
        code = f", exit code {self.exit_code}" if self.exit_code not in ("", "0:0") else ""
        where = f" on {self.nodes}" if self.nodes else ""
        return f"{word} ({self.state}{code}){where}"


GONE = JobState("UNKNOWN", queued=False)  # of a job that Slurm knows no more


def call(command: Sequence[str]) -> str:
    """What a Slurm command prints; SlurmError with what it said on stderr."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
    environment = {**kept, "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=environment
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]}: not found; log in to a node with Slurm's commands") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s; try again later") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise SlurmError(f"{command[0]} failed (code {done.returncode}): {said}")
    return done.stdout


class Queue:
    """Asks for the states of jobs. Remembers whether there is accounting, so that it is asked in vain only once.

    What a person should know of the answers stands in `notes`, and is told to `say`, once each.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.accounting = True
        self.notes: list[str] = []
        self._say = say

    def states(self, submitted: Mapping[str, float], wanted: Collection[JobId]) -> dict[JobId, JobState]:
        """The state of each of the `wanted` jobs; `submitted` maps the numbers of their arrays to when we did so.

        What neither queue nor accounting knows is GONE.
        """
        asked = {job.job: submitted[job.job] for job in wanted}
        if not asked:
            return {}
        found = self._queued(asked)
        lost = {job.job: asked[job.job] for job in wanted if job not in found}
        if lost and self.accounting:
            found = {**self._accounted(lost), **found}
        return {job: found.get(job, GONE) for job in wanted}

    def living(self, submitted: Mapping[str, float]) -> list[str]:
        """Which of the `submitted` numbers (see `states`) still wait or run."""
        found = self._queued(submitted) if submitted else {}
        return list(dict.fromkeys(job.job for job, state in found.items() if state.phase != "ended"))

    def runs(self, job: JobId, began_by_s: float) -> bool:
        """Whether the job runs now that had begun by then: one submitted later is another of the same number."""
        state = self._queued({job.job: 0.0}, began_by_s).get(job)
        return state is not None and state.phase == "running"

    def began_s(self, job: JobId) -> float | None:
        """When the life of a job that runs now began, in seconds since the epoch; None where Slurm does not say."""
        said = call(["squeue", "--noheader", f"--jobs={job}", "--format=%S"])
        return _seconds(said.strip())

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self._say(text)

    def _state(self, text: str) -> str:
        word = state(text)
        if not known(word):
            self._note(f"Slurm calls a job {word!r}, which this version does not know: it is taken to run")
        return word

    def _queued(self, submitted: Mapping[str, float], began_by_s: float = math.inf) -> dict[JobId, JobState]:
        command = ["squeue", "--noheader", f"--jobs={','.join(submitted)}", "--format=%i|%T|%V|%N|%r"]
        try:
            said = call(command)
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return {}
            raise
        found: dict[JobId, JobState] = {}
        for line in said.splitlines():
            names, word, at, nodes, reason = line.split("|", 4)
            for job in job_ids(names):
                if job.job in submitted and _ours(at, submitted[job.job], began_by_s):
                    found[job] = JobState(self._state(word), reason if reason != "None" else "", nodes)
        return found

    def _accounted(self, submitted: Mapping[str, float]) -> dict[JobId, JobState]:
        command = [
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--jobs={','.join(submitted)}",
            f"--starttime={moment(min(submitted.values()) - SKEW_S)}",
            "--format=JobID,State,Submit,NodeList,ExitCode",
        ]
        try:
            said = call(command)
        except SlurmError as error:
            if is_off(error):
                self.accounting = False
                self._note("accounting is off here: how a job died that could not say so itself is not known")
            else:  # asked again the next time
                self._note(f"accounting does not answer: {error}")
            return {}
        found: dict[JobId, JobState] = {}
        for line in said.splitlines():
            names, word, at, nodes, code = line.split("|")
            for job in job_ids(names):
                if job.job in submitted and _ours(at, submitted[job.job]):
                    where = "" if nodes == "None assigned" else nodes
                    found[job] = JobState(self._state(word), "", where, code, queued=False)
        return found


def cancel(jobs: Sequence[str]) -> None:
    """Cancels jobs, in one call; those that are over already do not matter."""
    if not jobs:
        return
    try:
        call(["scancel", *jobs])
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise


def setting(name: str) -> str | None:
    """One value of `scontrol show config`, such as MaxArraySize; None where there is none of that name."""
    for line in call(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        if key.strip().lower() == name.lower():
            return value.strip()
    return None


def _ours(at: str, submitted_s: float, began_by_s: float = math.inf) -> bool:
    """Whether Slurm's time of submission (local, ISO) is not before ours, nor after the job had begun."""
    then = _seconds(at)
    return then is None or submitted_s - SKEW_S <= then <= began_by_s + SKEW_S


def is_off(error: SlurmError) -> bool:
    """Whether sacct says that there is no accounting; anything else passes."""
    return "accounting storage is disabled" in str(error)


def moment(at_s: float) -> str:
    """A time as Slurm's commands take it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def _seconds(at: str) -> float | None:
    """Slurm's local time in seconds since the epoch; None for `N/A` and `Unknown`."""
    try:
        return time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
