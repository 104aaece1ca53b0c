"""Campaigns on a development cluster, in the hands of a test, which submits and follows them from its own process.

A `Standin` makes nothing: its bodies (`tests/cluster/standin`) do as they are ordered and leave a trace. A `Training`
is real but for its measurements, which are made up, so that an iteration lasts as long as a test needs to hit it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from campaign_configs import CONFIG, changed

from crosspipe.campaign.costs import CostsConfig, make_costs
from crosspipe.campaign.driver import Plan, Summary, plan_campaign
from crosspipe.campaign.outcomes import JobRecord, hear_now, read_jobs
from crosspipe.campaign.points import make_points
from crosspipe.campaign.slurm import journal
from crosspipe.campaign.slurm.follow import follow_campaign
from crosspipe.campaign.slurm.submit import submit_campaign
from crosspipe.campaign.status import campaign_status
from crosspipe.campaign.tasks import BODIES
from crosspipe.problem import Link, LinkTable
from crosspipe.problem.architecture import ModelConfig
from crosspipe.store import Request, RunRecord, load, my_claim, save

DEVCLUSTER: dict[str, Any] = {
    "name": "devcluster", "executor": "slurm", "sites": ["dc0", "dc1"], "patience_s": 2,
    "resources": CONFIG["cluster"]["resources"],
}  # fmt: skip
FAULTS = changed(
    CONFIG, name="faults", cluster=DEVCLUSTER, solver__points_per_job=1, run__points_per_job=1, pipeline__stages=2
)

# another process that submits the same campaign: `python -c SUBMIT CONFIGS DIRECTORY`
SUBMIT = """
import json, sys
from pathlib import Path
from crosspipe.campaign.driver import plan_campaign
from crosspipe.campaign.points import make_points
from crosspipe.campaign.slurm.submit import submit_campaign
plan = plan_campaign(make_points(*json.loads(sys.argv[1])))
submit_campaign(plan, Path(sys.argv[2]), lambda text: print(text, flush=True), bodies="cluster_bodies")
"""


class Quiet:
    """Hears everything, says nothing."""

    def begin(self, plan: Any) -> None: ...

    def ended(self, node: Any, status: str, reason: str) -> None: ...

    def now(self, stage: str, text: str) -> None: ...


class Campaign:
    """A point per schedule, on `cluster`; `section__key=value` changes FAULTS."""

    bodies = BODIES

    def __init__(self, cluster: Any, folder: Path, *schedules: str, store: Path | None = None, **changes: Any) -> None:
        self.cluster, self.directory, self.schedules = cluster, folder / "campaign", schedules
        base = changed(FAULTS, store=str(store or folder / "store"), **changes)
        self.configs = [{**base, "schedule": {"name": name}} for name in schedules]
        self.overrides = [[f"schedule={name}"] for name in schedules]

    def plan(self) -> Plan:
        return plan_campaign(make_points(self.configs, self.overrides))

    def submit(self) -> list[str]:
        """Submits what is lacking; returns the jobs' numbers."""
        new = submit_campaign(self.plan(), self.directory, lambda text: None, bodies=self.bodies).new
        return [entry.job or "" for entry in new]

    def job(self, stage: str) -> str:
        """The number of the job or array that was submitted for a stage last."""
        return [entry.job or "" for entry in journal.submissions(self.directory) if entry.stage == stage][-1]

    def follow(self) -> Summary:
        return follow_campaign(self.plan(), self.directory, Quiet())

    def reasons(self) -> dict[str, str]:
        """Follows to the end; why what failed did so, by `stage point`."""
        return {
            f"{outcome.stage} {node.points[0]}": outcome.reason
            for node, outcome in self.follow().failures
            if outcome.status == "failed"
        }


class Standin(Campaign):
    """Two schedules whose bodies do as `orders` say."""

    bodies = "cluster_bodies"

    def __init__(self, cluster: Any, folder: Path, store: Path | None = None) -> None:
        super().__init__(cluster, folder, "1f1b", "zbh1", store=store)
        self.orders = folder / "orders"
        self.orders.mkdir()
        (self.orders / "trace").touch()
        (self.orders / "megabytes").write_text("0.01")
        runs = [f"{stage} {name}" for stage in ("solve", "run") for name in self.schedules]
        self.all = sorted(["links 1f1b", "blocks 1f1b", *runs])

    def submitter(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """As `submit`, in a process of its own."""
        command = [sys.executable, "-c", SUBMIT, json.dumps([self.configs, self.overrides]), str(self.directory)]
        return subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
        )

    def hold(self, stage: str) -> None:
        (self.orders / f"hold-{stage}").touch()

    def release(self, stage: str) -> None:
        (self.orders / f"hold-{stage}").unlink()

    def trace(self, word: str) -> list[str]:
        lines = (self.orders / "trace").read_text().splitlines()
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]

    def running(self, stage: str, jobs: int = 1) -> list[JobRecord]:
        """Waits until so many jobs of a stage hold, both ranks of each where it has ranks; returns them."""
        word, each = ("rank", 2) if stage == "run" else ("begin", 1)
        begun = f"{jobs} jobs of {stage}"
        self.cluster.wait(lambda: sum(line.startswith(stage) for line in self.trace(word)) >= each * jobs, begun)
        return [job for job in read_jobs(self.directory) if job.task.startswith(f"{stage}-")]

    def assert_complete(self) -> None:
        """Everything is in the store, made exactly once."""
        status = campaign_status(self.directory)
        assert status.complete, status
        assert sorted(self.trace("made")) == self.all


class Training(Campaign):
    """Four ranks on four nodes, packed into one job, on blocks of 20 ms and links that cost next to nothing.

    An iteration of 1F1B is (4 + 3) x 60 ms and the delay.
    """

    def __init__(
        self, cluster: Any, folder: Path, *schedules: str, keep_every_s: float | None = None, **run: Any
    ) -> None:
        run = {"pace": 1.0, "warmup": 1, "check_gradients": False, "points_per_job": len(schedules), **run}
        changes = {f"run__{key}": value for key, value in run.items()}
        changes |= {"pipeline__stages": 4, "pipeline__microbatches": 4, "solver__points_per_job": len(schedules)}
        changes |= {"cluster__resources__run__minutes": 30, "cluster__keep_every_s": keep_every_s}
        super().__init__(cluster, folder, *schedules, **changes)
        self._measure(block_ms=20.0)

    def _measure(self, block_ms: float) -> None:
        """Into the store, as if jobs had measured it."""
        plan, me = self.plan(), my_claim()
        for node in plan.graph.stage("links"):
            ranks = range(len(node.site_of_rank))
            pairs = [(a, b) for a in ranks for b in ranks if a != b]
            links = tuple(
                Link(source=a, target=b, transport="gloo", latency_ns=20_000, bandwidth_bytes_per_s=None)
                for a, b in pairs
            )
            assert plan.store.claim(node.request, me) is None
            with plan.store.making(node.request, me) as scratch:
                save(scratch / "links.json", LinkTable(links=links, site_of_rank=node.site_of_rank))
        for node in plan.graph.stage("blocks"):
            asked = node.request.config
            costs = CostsConfig(
                source="given", forward_ms=block_ms, input_grad_ms=block_ms, weight_grad_ms=block_ms, message_mib=2**-7
            )
            model, layers = msgspec.convert(asked["model"], ModelConfig), tuple(map(tuple, asked["layers"]))
            assert plan.store.claim(node.request, me) is None
            with plan.store.making(node.request, me) as scratch:
                save(scratch / "blocks.json", make_costs(costs, model, asked["traversal"], layers))

    def wait_for_iteration(self, schedule: str, number: int, *, task: str = "run-000") -> None:
        """Until the ranks are at that iteration of a point, or beyond."""

        def there() -> bool:
            said = re.fullmatch(r"(.+): iteration (\d+)/\d+", hear_now(self.directory, task))
            return said is not None and said[1] == schedule and int(said[2]) >= number

        self.cluster.wait(there, f"iteration {number} of {schedule}", 120)

    def ranks(self) -> dict[int, int]:
        """The living ranks of this campaign, on whatever node, and their process numbers: nodes share those."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text().split("\0")
                named = "crosspipe.execute.worker" in words and words[-2].startswith(str(self.directory))
                if words[0] == sys.executable and named:
                    rank = re.search(r"\0SLURM_PROCID=(\d+)", (process / "environ").read_text(errors="replace"))
                    assert rank is not None
                    found[int(rank[1])] = int(process.name)
            except OSError:  # it has just ended
                continue
        return found

    def _log(self, rank: int) -> list[str]:
        """What a rank printed, in all its lives."""
        logs = sorted((self.directory / "logs").glob(f"run-*/rank{rank}.log"))
        return [line for log in logs for line in log.read_text().splitlines()]

    def starts(self) -> Counter[str]:
        """How often ranks began with each point."""
        lines = (re.fullmatch(r"\d\d:\d\d:\d\d (.+)", line) for line in self._log(0))
        return Counter(line[1] for line in lines if line)

    def iterations(self, schedule: str) -> list[tuple[int, str]]:
        """(number, loss) of every iteration that the last rank finished for a point, in all its lives."""
        found, point = [], ""
        for line in self._log(3):
            if begun := re.fullmatch(r"\d\d:\d\d:\d\d (.+)", line):
                point = begun[1]
            elif (ended := re.match(r"iteration (\d+): loss ([\d.]+),", line)) and point == schedule:
                found.append((int(ended[1]), ended[2]))
        return found

    def kept(self, schedule: str) -> int:
        """How many iterations of a point are in the training state that is kept for another life; 0 without one."""
        states = (self.directory / "unfinished" / self._run(schedule).key).glob("iteration-*")
        return max((int(state.name.partition("-")[2]) for state in states), default=0)

    def record(self, schedule: str) -> RunRecord:
        """What the run of a point left in the store."""
        return load(self.plan().store.file(self._run(schedule), "run.json"), RunRecord)

    def _run(self, schedule: str) -> Request:
        (request,) = (node.request for node in self.plan().graph.stage("run") if node.points == (schedule,))
        return request

    def assert_complete(self) -> None:
        """Everything is in the store, and no rank lives."""
        status = campaign_status(self.directory)
        assert status.complete, status
        self.cluster.wait(self.cluster.idle, "the end of the job")
        assert self.ranks() == {}
