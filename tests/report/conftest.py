"""A small campaign on disk whose every number was worked out by hand.

Two stages on two sites, two microbatches, F = D = W = 10 ms, delay across sites 0 or T_F = 10 ms, no serialisation:

    1F1B,  no delay: stage 1 runs F0 10-20, B0 20-40, F1 40-50, B1 50-70; stage 0 ends with B1 70-90.     90 ms
    1F1B,  10 ms:    the same, F0 arrives at 20; B1 on stage 1 60-80, its message arrives at 90.         110 ms
    ZB-H1, no delay: stage 1 is busy from 10 to 70 and starts as early as any order can: optimal.         70 ms
    ZB-H1, 10 ms:    D1 ends on stage 1 at 60, arrives at 70, D1 and W1 follow on stage 0.                90 ms
                     Stage 1 starts at 20 at the earliest and needs four blocks before its last D ends: optimal.

GPipe does not fit its memory, cross_ud was blocked by a dead profile of another model, zbh2 has not run yet.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest

from crosspipe.problem import BlockCost, BlockCosts, Finding, Link, LinkTable, Problem, Spread
from crosspipe.schedule import Block, Certificate, Provenance, Schedule, Timeline, simulate_reference
from crosspipe.store.campaign_file import CampaignFile, CampaignPoint, Outcome, outcome_path
from crosspipe.store.claims import my_claim
from crosspipe.store.files import save
from crosspipe.store.records import Iteration, Rank, RunRecord
from crosspipe.store.request import Request
from crosspipe.store.store import Store
from crosspipe.store.timelines import write_timelines

MS = 1_000_000
NASTY = 'tiny<b>"&'  # a label that would break a page which does not escape
HAND_WORKED_MS = {("1f1b", 0): 90, ("1f1b", 1): 110, ("zbh1", 0): 70, ("zbh1", 1): 90}
BOUND_MS = {0: 70, 1: 90}
ORDERS = {
    "1f1b": ("F0 F1 B0 B1", "F0 B0 F1 B1"),
    "zbh1": ("F0 F1 D0 W0 D1 W1", "F0 D0 F1 D1 W0 W1"),
}
# iteration times minus the prediction, in ms: median 0.7; of 8 samples the 95 % interval is all, 0.1 to 1.3
OFFSETS_MS = (0.9, 0.1, 0.5, 1.3, 0.7, 0.3, 1.1, 0.7)


def problem(ratio: int) -> Problem:
    return Problem.uniform(
        stages=2, microbatches=2, sites=2, forward_ms=10, input_grad_ms=10, weight_grad_ms=10, latency_ms=10 * ratio,
        memory_microbatches=2,
    )  # fmt: skip


def schedule(name: str, ratio: int) -> Schedule:
    orders = tuple(tuple(Block(b[0], 0, int(b[1:])) for b in row.split()) for row in ORDERS[name])
    makespan = HAND_WORKED_MS[name, ratio] * MS
    bound = Certificate(
        makespan_ns=makespan, lower_bound_ns=BOUND_MS[ratio] * MS, proven_by="by hand",
        explanation=f"stage 1 cannot begin before {10 + 10 * ratio} ms", assumptions=("one microbatch order",),
    )  # fmt: skip
    return Schedule(
        name=name, traversal="ud", stages=2, chunks=1, microbatches=2, orders=orders, certificate=bound,
        problem_digest=problem(ratio).digest(), provenance=Provenance(method="fixed order", seed=0, wall_s=0.5),
    )  # fmt: skip


def run_record(name: str, ratio: int) -> RunRecord:
    predicted = HAND_WORKED_MS[name, ratio] * MS
    extra = (-0.2, *OFFSETS_MS)
    iterations = tuple(
        Iteration(
            index=i, warmup=i == 0, loss=5.0 - 0.25 * i, gradient_norm=1.0,
            makespan_ns=predicted + round(extra[i] * MS), iteration_ns=predicted + 3 * MS + round(extra[i] * MS),
            gradient_norm_ns=1 * MS, optimizer_step_ns=2 * MS, raw_makespan_ns=predicted + 5 * MS,
            late_blocks=0, late_messages=0, largest_lateness_ns=0,
        )
        for i in range(9)
    )  # fmt: skip
    return RunRecord(
        problem_digest=problem(ratio).digest(), schedule_name=name, origin="emulated", transport="gloo", pace=4.0,
        predicted_makespan_ns=predicted, predicted_iteration_ns=predicted + 3 * MS, iterations=iterations,
        peak_activation_bytes=(2 * 2**20, 2**20), planned_receive_bytes=(4096, 4096), gradient_relative_error=2e-7,
        delay_error_ns={"p50": 40_000, "p95": 120_000, "max": 300_000}, messages_sent=32,
        ranks=tuple(Rank(rank=r, stage=r, site=r, host=f"node{r}", pid=100 + r, device="cpu") for r in range(2)),
        environment={"torch": "2.13.0", "git_commit": "0123abc"},
    )  # fmt: skip


def measured_timeline(name: str, ratio: int) -> Timeline:
    return msgspec.structs.replace(simulate_reference(problem(ratio), schedule(name, ratio)), origin="emulated")


def links() -> LinkTable:
    def link(a: int, b: int, transport: str, latency_us: int) -> Link:
        return Link(
            source=a, target=b, transport=transport, latency_ns=latency_us * 1000, bandwidth_bytes_per_s=2 * 10**9,
            latency=Spread(median=latency_us * 1e3, low=latency_us * 900.0, high=latency_us * 1100.0, samples=50),
        )  # fmt: skip

    return LinkTable(
        links=(link(0, 1, "mpi", 20), link(1, 0, "mpi", 21), link(0, 1, "gloo", 90), link(1, 0, "gloo", 80)),
        site_of_rank=(0, 1), node_of_rank=("node0", "node1"), environment={"library": "MPICH 4.3"},
        findings=(Finding(name="shared_memory", detail="ranks 0 and 1 share the memory of <one> node"),),
    )  # fmt: skip


def blocks() -> BlockCosts:
    cost = BlockCost(
        forward_ns=10 * MS // 4, input_grad_ns=10 * MS // 4, weight_grad_ns=10 * MS // 4, forward_keep_bytes=2**20,
        input_grad_release_bytes=2**19, weight_grad_release_bytes=2**19, forward_message_bytes=65536,
        backward_message_bytes=65536,
    )  # fmt: skip
    return BlockCosts(
        blocks=((cost,), (cost,)), gradient_norm_ns=(250_000, 250_000), optimizer_step_ns=(500_000, 500_000),
        parameter_bytes=(3 * 2**20, 3 * 2**20), layers=((2,), (2,)), origin="measured",
        spreads={"s0.c0.F": Spread(median=2.5e6, low=2.4e6, high=2.7e6, samples=15)}, environment={"cpu": "x86_64"},
    )  # fmt: skip


def artifact(store: Store, request: Request, files: dict[str, object]) -> Request:
    claim = my_claim()
    assert store.claim(request, claim) is None
    with store.making(request, claim) as folder:
        for name, content in files.items():
            if name.endswith(".parquet"):
                write_timelines(folder / name, content)
            else:
                save(folder / name, content)
    return request


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A campaign directory of the test's own, to change at will; its store is `store` beside it."""
    return write_campaign(tmp_path)


@pytest.fixture(scope="session")
def shared_campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, written once, only to be read."""
    return write_campaign(tmp_path_factory.mktemp("shared"))


def write_campaign(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    of_links = artifact(store, Request(stage="links", version=1, config={}, epoch=1), {"links.json": links()})
    of_blocks = artifact(store, Request(stage="blocks", version=1, config={}, epoch=1), {"blocks.json": blocks()})
    profiles = {"links": of_links.key, "blocks": of_blocks.key}
    points, cached = [], []
    for name, ratio in HAND_WORKED_MS:
        config = {"schedule": name, "ratio": ratio}
        inputs = {"links": of_links.reference, "blocks": of_blocks.reference}
        solved = artifact(
            store,
            Request(stage="solve", version=1, config=config, inputs=inputs),
            {"problem.json": problem(ratio), "schedule.json": schedule(name, ratio)},
        )
        ran = artifact(
            store,
            Request(stage="run", version=1, config=config, inputs={"solve": solved.reference}),
            {"run.json": run_record(name, ratio), "timelines.parquet": [measured_timeline(name, ratio)] * 8},
        )
        points.append(point(name, ratio, profiles | {"solve": solved.key, "run": ran.key}))
        cached += [ran.reference] if (name, ratio) == ("zbh1", 0) else []
    points += [
        point("gpipe", 1, profiles | {"solve": "a" * 64, "run": "b" * 64}),
        point("cross_ud", 1, profiles | {"solve": "c" * 64, "run": "d" * 64}),
        point("zbh2", 1, profiles | {"solve": "e" * 64, "run": "f" * 64}),
    ]
    root = tmp_path / "campaign"
    plan = CampaignFile(
        name="hand <made>", store=str(store.root), created_at_s=1.75e9, points=tuple(points), cached=tuple(cached),
        environment={"crosspipe": "0.1.0", "host": "node0"},
    )  # fmt: skip
    root.mkdir()
    save(root / "campaign.json", plan)
    outcome(root, "solve", "a" * 64, "failed", "stage 0 needs 3 MiB, its limit is 2 MiB", "logs/solve.log")
    outcome(root, "run", "d" * 64, "blocked", "solve/cccc is missing")
    return root


def point(name: str, ratio: int, keys: dict[str, str]) -> CampaignPoint:
    labels = {
        "schedule": name, "model": NASTY, "network": "ratios", "latency_ratio": float(ratio), "bandwidth_ratio": 0.0,
        "pace": 4.0,
    }  # fmt: skip
    return CampaignPoint(name=f"{name},{ratio}", labels=labels, config={}, keys=keys)


def outcome(root: Path, stage: str, key: str, status: str, reason: str, log: str | None = None) -> None:
    path = outcome_path(root, stage, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, Outcome(stage=stage, key=key, status=status, reason=reason, log=log))


@pytest.fixture(scope="session")
def many_points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of 200 points, 8 stages and 16 microbatches each: 1F1B at 50 delays in 4 settings, each with artifacts
    of its own; the first ten keep a measured timeline."""
    tmp_path = tmp_path_factory.mktemp("many")
    store, points = Store(tmp_path / "store"), []
    for index in range(200):
        ratio, setting = index % 50, index // 50
        big, planned, timeline = _one_of_many(ratio % 10)
        record = msgspec.structs.replace(
            run_record("1f1b", 0), problem_digest=big.digest(), predicted_makespan_ns=timeline.makespan_ns
        )
        config = {"index": index}
        solved = artifact(
            store,
            Request(stage="solve", version=1, config=config),
            {"problem.json": big, "schedule.json": planned},
        )
        ran = artifact(
            store,
            Request(stage="run", version=1, config=config, inputs={"solve": solved.reference}),
            {"run.json": record} | ({"timelines.parquet": [timeline]} if index < 10 else {}),
        )
        labels = point("1f1b", ratio, {}).labels | {"run.setting": setting}
        keys = {"solve": solved.key, "run": ran.key}
        points.append(CampaignPoint(name=f"1f1b,{ratio},{setting}", labels=labels, config={}, keys=keys))
    plan = CampaignFile(name="many", store=str(store.root), created_at_s=1.75e9, points=tuple(points))
    (tmp_path / "campaign").mkdir()
    save(tmp_path / "campaign" / "campaign.json", plan)
    return tmp_path / "campaign"


@functools.cache
def _one_of_many(latency_ms: int) -> tuple[Problem, Schedule, Timeline]:
    big = Problem.uniform(
        stages=8, microbatches=16, sites=2, forward_ms=10, input_grad_ms=10, weight_grad_ms=10, latency_ms=latency_ms
    )
    orders = []
    for stage in range(8):  # 1F1B: as many F ahead as there are stages from here on
        ahead = 8 - stage
        order = [Block("F", 0, i) for i in range(ahead)]
        for i in range(16):
            order += [Block("B", 0, i)] + ([Block("F", 0, i + ahead)] if i + ahead < 16 else [])
        orders.append(tuple(order))
    planned = Schedule(name="1f1b", traversal="ud", stages=8, chunks=1, microbatches=16, orders=tuple(orders))
    timeline = simulate_reference(big, planned)
    bound = Certificate(
        makespan_ns=timeline.makespan_ns, lower_bound_ns=timeline.makespan_ns // 2, proven_by="none",
        explanation="made up", assumptions=(),
    )  # fmt: skip
    return big, msgspec.structs.replace(planned, certificate=bound, problem_digest=big.digest()), timeline
