"""Does the holder of a claim still work? On a cluster Slurm knows, where a file's age could only guess.

A job that died with its node leaves its claim behind; whoever wants the same artifact asks Slurm for that job instead
of waiting until the claim has been silent for long.
"""

from __future__ import annotations

import os
import socket
import time

from crosspipe.campaign.job import CLUSTER, Me
from crosspipe.campaign.slurm.queue import Queue, SlurmError
from crosspipe.campaign.slurm.states import JobId
from crosspipe.store.claims import Claim, holder_lives

ASK_AGAIN_S = 20.0


class JobLives:
    """Whether holders live, as the job `me` sees it: exact on its own machine, by Slurm for a job elsewhere.

    Slurm is asked for the same job every 20 s at most; where it does not answer, or the job is another cluster's, the
    claim's silence decides.
    """

    def __init__(self, me: Me, queue: Queue) -> None:
        self._me, self._queue, self._cluster = me, queue, os.environ.get(CLUSTER)
        self._answers: dict[JobId, tuple[float, bool]] = {}

    def __call__(self, claim: Claim, silent_s: float) -> bool:
        if claim.released or claim.host == socket.gethostname() or claim.job is None:
            return holder_lives(claim, silent_s)
        if claim.cluster != self._cluster:
            return holder_lives(claim, silent_s)
        job = JobId(claim.job, claim.array_index)
        if self._me.slurm and job == (self._me.job, self._me.index):
            return False  # this very job in an earlier life, on another node: it was requeued since
        asked_s, answer = self._answers.get(job, (-ASK_AGAIN_S, True))
        if time.monotonic() - asked_s >= ASK_AGAIN_S:
            try:
                answer = self._queue.runs(job, claim.submitted_at_s)
            except SlurmError:
                answer = holder_lives(claim, silent_s)
            self._answers[job] = (time.monotonic(), answer)
        return answer
