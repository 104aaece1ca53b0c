"""Does the holder of a claim still work? On a cluster Slurm knows, where a file's age could only guess.

A job that died with its node leaves its claim behind; whoever wants the same artifact asks Slurm for that job instead
of waiting until the claim has been silent for long.
"""

from __future__ import annotations

import os
import socket
import time
from functools import cached_property

from crosspipe.campaign.job import CLUSTER, Me
from crosspipe.campaign.slurm.queue import Queue, SlurmError, setting
from crosspipe.campaign.slurm.states import JobId
from crosspipe.store.claims import Claim, holder_lives

ASK_AGAIN_S = 20.0


class JobLives:
    """Whether holders live, as the job `me` (None: somebody outside) sees it: exact on its own machine, by Slurm for a
    job elsewhere.

    Slurm is asked for the same job every 20 s at most; where it does not answer, or the job is another cluster's, the
    claim's silence decides.
    """

    def __init__(self, me: Me | None, queue: Queue) -> None:
        self._me, self._queue = me, queue
        self._answers: dict[JobId, tuple[float, bool]] = {}

    def __call__(self, claim: Claim, silent_s: float) -> bool:
        if claim.released or claim.host == socket.gethostname() or claim.job is None:
            return holder_lives(claim, silent_s)
        if claim.cluster is not None and claim.cluster != self._cluster:
            return holder_lives(claim, silent_s)
        job = JobId(claim.job, claim.array_index)
        if self._me is not None and self._me.slurm and job == (self._me.job, self._me.index):
            return False  # this very job in an earlier life, on another node: it was requeued since
        if self._me is not None and job == self._me.within:  # the allocation that this is in, from another of its nodes
            began_s = self._began_s
            return holder_lives(claim, silent_s) and (began_s is None or claim.submitted_at_s >= began_s)
        asked_s, answer = self._answers.get(job, (-ASK_AGAIN_S, True))
        if time.monotonic() - asked_s >= ASK_AGAIN_S:
            try:
                answer = self._queue.runs(job, claim.submitted_at_s)
            except SlurmError:
                answer = holder_lives(claim, silent_s)
            self._answers[job] = (time.monotonic(), answer)
        return answer

    @cached_property
    def _began_s(self) -> float | None:
        """When this life of the allocation began: what was claimed before that, an earlier one has left behind."""
        assert self._me is not None
        assert self._me.within is not None
        try:
            return self._queue.began_s(JobId(*self._me.within))
        except SlurmError:
            return None

    @cached_property
    def _cluster(self) -> str | None:
        """The cluster whose jobs Slurm is asked for here."""
        try:
            return os.environ.get(CLUSTER) or setting("ClusterName")
        except SlurmError:
            return None
