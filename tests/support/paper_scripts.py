"""Scripts of analysis/: called as a user calls them, and campaigns written by hand for them to read."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from crosspipe.problem import Problem
from crosspipe.schedule import Certificate, Schedule, Timeline
from crosspipe.store.campaign_file import CampaignFile, CampaignPoint, Outcome, outcome_path
from crosspipe.store.claims import my_claim
from crosspipe.store.files import save
from crosspipe.store.records import Iteration, Rank, RunRecord
from crosspipe.store.request import Request
from crosspipe.store.store import Store
from crosspipe.store.timelines import write_timelines

ANALYSIS = Path(__file__).parents[2] / "analysis"
MS = 1_000_000
LABELS = {"model": "made up", "network": "ratios", "latency_ratio": None, "bandwidth_ratio": None, "pace": None}


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`python analysis/NAME.py ARGUMENTS`, as a user calls it."""
    return subprocess.run(
        [sys.executable, str(ANALYSIS / f"{name}.py"), *map(str, arguments)],
        env={"PYTHONPATH": str(ANALYSIS.parent), "PATH": "/usr/bin:/bin", "COLUMNS": "160"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def said_by(name: str, *arguments: object) -> str:
    """What script `name` says where it succeeds."""
    done = run_script(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(name: str) -> ModuleType:
    """A script of analysis/ as a module."""
    spec = importlib.util.spec_from_file_location(f"analysis_{name}", ANALYSIS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def written(name: str, *campaigns: Path) -> Path:
    """The folder of what script `name` made of `campaigns`: all of it, in every form."""
    out = campaigns[0].parent / "out"
    said_by(name, *campaigns, "-o", out)
    assert {path.suffix for path in out.iterdir()} == {".csv", ".md", ".tex", ".pdf", ".svg", ".png"}
    assert all(len((out / f"{name}.{ending}").read_text()) > 100 for ending in ("md", "tex"))
    return out


def write_runs(root: Path, runs: Sequence[dict[str, Any]]) -> Path:
    """A campaign in `root` of points that were run: `schedule`, `problem`, `bound_ms`, `predicted_ms`, `measured_ms`
    (one per iteration), and where wanted `config`, `labels`, `timelines` and `origin`."""
    store, points = Store(root / "store"), []
    for number, run in enumerate(runs):
        problem: Problem = run["problem"]
        name, predicted_ns = run["schedule"], round(run["predicted_ms"] * MS)
        schedule = _schedule(name, problem, predicted_ns, run["bound_ms"])
        iterations = tuple(
            Iteration(
                index=i, warmup=False, loss=5.0, gradient_norm=1.0, makespan_ns=round(ms * MS),
                iteration_ns=round(ms * MS), gradient_norm_ns=0, optimizer_step_ns=0, raw_makespan_ns=round(ms * MS),
                late_blocks=0, late_messages=0, largest_lateness_ns=0,
            )
            for i, ms in enumerate(run["measured_ms"])
        )  # fmt: skip
        record = RunRecord(
            problem_digest=problem.digest(), schedule_name=name, origin=run.get("origin", "emulated"), transport="gloo",
            pace=1.0, predicted_makespan_ns=predicted_ns, predicted_iteration_ns=predicted_ns, iterations=iterations,
            peak_activation_bytes=(), planned_receive_bytes=(), gradient_relative_error=None, delay_error_ns={},
            messages_sent=0, environment={},
            ranks=tuple(Rank(rank=r, stage=r, site=s, host="n", pid=1, device="cpu") for r, s in
                        enumerate(problem.sites)),
        )  # fmt: skip
        timelines: list[Timeline] = run.get("timelines", [])
        solved = _made(store, "solve", number, {"problem.json": problem, "schedule.json": schedule})
        files = {"run.json": record} | ({"timelines.parquet": timelines} if timelines else {})
        ran = _made(store, "run", number, files)
        labels = LABELS | {"schedule": name, "pace": 1.0} | run.get("labels", {})
        keys = {"solve": solved, "run": ran}
        points.append(CampaignPoint(name=f"p{number}", labels=labels, config=run.get("config", {}), keys=keys))
    return _campaign(root, store, points)


def write_solved(root: Path, runs: Sequence[dict[str, Any]]) -> Path:
    """A campaign in `root` of points that end with their schedule: `schedule`, `labels`, `config`, and where solved
    `problem` and `predicted_ms`; where the memory is too small, `needs`, the reason."""
    store, points = Store(root / "store"), []
    for number, run in enumerate(runs):
        name, problem = run["schedule"], run.get("problem")
        key = f"{number:064x}"
        if problem is not None:
            schedule = _schedule(name, problem, round(run["predicted_ms"] * MS), run["predicted_ms"])
            key = _made(store, "solve", number, {"problem.json": problem, "schedule.json": schedule})
        if "needs" in run:
            path = outcome_path(root / "campaign", "solve", key)
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path, Outcome(stage="solve", key=key, status="failed", reason=run["needs"]))
        labels = LABELS | {"schedule": name} | run.get("labels", {})
        points.append(
            CampaignPoint(name=f"p{number}", labels=labels, config=run.get("config", {}), keys={"solve": key})
        )
    return _campaign(root, store, points)


def _schedule(name: str, problem: Problem, makespan_ns: int, bound_ms: float) -> Schedule:
    bound = Certificate(
        makespan_ns=makespan_ns, lower_bound_ns=round(bound_ms * MS), proven_by="by hand", explanation="made up",
        assumptions=(),
    )  # fmt: skip
    return Schedule(
        name=name, traversal=problem.traversal, stages=problem.stages, chunks=problem.chunks,
        microbatches=problem.microbatches, orders=((),) * problem.stages, certificate=bound,
        problem_digest=problem.digest(),
    )  # fmt: skip


def _campaign(root: Path, store: Store, points: Sequence[CampaignPoint]) -> Path:
    campaign = root / "campaign"
    campaign.mkdir(exist_ok=True)
    store.root.mkdir(exist_ok=True)
    save(
        campaign / "campaign.json",
        CampaignFile(name="by hand", store=str(store.root), created_at_s=1.75e9, points=tuple(points)),
    )
    return campaign


def _made(store: Store, stage: str, number: int, files: dict[str, Any]) -> str:
    request = Request(stage=stage, version=1, config={"number": number})
    claim = my_claim()
    assert store.claim(request, claim) is None
    with store.making(request, claim) as folder:
        for name, content in files.items():
            write_timelines(folder / name, content) if name.endswith(".parquet") else save(folder / name, content)
    return request.key
