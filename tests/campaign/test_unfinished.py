"""Runs that were stopped: which are kept, where, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crosspipe.campaign import stages, unfinished
from crosspipe.campaign.config import typed
from crosspipe.campaign.driver import plan_campaign, plan_tasks
from crosspipe.campaign.job import Context
from crosspipe.errors import StageFailed
from crosspipe.execute.session import Outcome
from crosspipe.execute.spec import Session
from crosspipe.store import my_claim


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"cluster__executor": "slurm"}, True),
        ({"cluster__executor": "allocation"}, True),
        ({"cluster__executor": "local"}, False),  # nobody takes this machine away
        ({"cluster__executor": "slurm", "cluster__keep_every_s": None}, False),
        ({"cluster__executor": "slurm", "run__swap_file": "next.json"}, False),
        ({"cluster__executor": "slurm", "run__replan_above": 0.1}, False),
        ({"cluster__executor": "slurm", "run__bandwidth_trace": "trace.csv"}, False),
    ],
)
def test_runs_on_nodes_are_kept_where_a_later_start_goes_on_alike(
    config: dict[str, Any], change: Callable[..., Any], changes: dict[str, Any], kept: bool
) -> None:
    point = typed(change(config, **changes))
    assert unfinished.is_kept(point.cluster, point.run) is kept


def test_how_often_a_run_is_kept_is_in_no_key(points: Callable[..., Any]) -> None:
    often, never = (plan_campaign(points(cluster__keep_every_s=seconds)) for seconds in (5.0, None))
    assert list(often.graph.nodes) == list(never.graph.nodes)


def test_a_run_goes_on_in_a_folder_of_its_own_until_it_is_done(
    points: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_campaign(points(cluster__executor="allocation", cluster__keep_every_s=7.0))
    (task,) = [task for task in plan_tasks(plan, tmp_path / "c") if task.stage == "run"]
    store = plan.store
    makings = []
    for request in task.requests[:2]:
        claim = my_claim()
        store.claim(request, claim)
        monkeypatch.setattr(store, "_digest", lambda name, reference: "")  # its inputs are not made here
        makings.append(store.begin(request, claim))
    sessions: list[Session] = []

    def run_points(session: Session, **given: object) -> Iterator[Outcome]:
        sessions.append(session)
        for point, failure in zip(session.points, (None, StageFailed("rank 2 died")), strict=True):
            (Path(point.kept or "") / "iteration-00000012").mkdir(parents=True)
            (Path(point.out) / "run.json").write_text("{}")
            yield Outcome(point, None, failure)

    monkeypatch.setattr("crosspipe.execute.session.run_points", run_points)
    monkeypatch.setattr(stages, "_placed", lambda context: None)
    monkeypatch.setattr(stages, "_with_cause", lambda failure, context: failure)
    costs = SimpleNamespace(gradient_norm_ns=(1,) * 4, optimizer_step_ns=(1,) * 4, stages=4)
    monkeypatch.setattr(stages, "load", lambda path, cls: costs)
    monkeypatch.setattr(Context, "input", lambda self, making, name, file: tmp_path / file)
    context = Context(task, store, tmp_path / "logs", lambda text: None)
    for making, failure in stages.run(makings, context):
        assert len(unfinished.states(tmp_path / "c", [making.request.reference])) == 1
        if failure is None:
            store.finish(making)
    first, second = (making.request for making in makings)
    assert [point.kept for point in sessions[0].points] == [
        str(tmp_path / "c" / "unfinished" / request.key) for request in (first, second)
    ]
    assert sessions[0].keep_every_s == 7.0
    assert [path.name for path in (tmp_path / "c" / "unfinished").iterdir()] == [second.key]  # for another try
