"""From composed configurations to a finished campaign: plan, directory, jobs, report; for `crosspipe run` and `retry`.

The pieces are elsewhere; here they are put in order, and what a person should know is said.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from crosspipe.campaign.config import PointConfig, check_possible, distrusted_table, typed
from crosspipe.campaign.display import listener, show_plan, show_summary
from crosspipe.campaign.driver import (
    Plan,
    Summary,
    check_same,
    check_time,
    plan_campaign,
    plan_tasks,
    run_campaign,
)
from crosspipe.campaign.executors import check_executor
from crosspipe.campaign.points import Point, make_points
from crosspipe.campaign.reporting import show_report, words_of_job
from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.problem.architecture import ModelConfig
from crosspipe.profile.fitting_memory import check_fits, free_bytes
from crosspipe.report.artifacts import does_not_fit, load_campaign
from crosspipe.store import Store
from crosspipe.store.campaign_file import Outcome
from crosspipe.store.store import REQUEST

CAMPAIGNS = Path("campaigns")
_NOWHERE = "/nonexistent"  # a campaign's folder that is yet to be named


class Stopped(CrosspipeError):
    """A person stopped looking."""


def launch(configs: Sequence[dict[str, Any]], overrides: Sequence[Sequence[str]], console: Console) -> int:
    """Runs (or, with `dry_run`, shows) the campaign of all `configs`; returns the exit code: 1 where a point failed."""
    points = make_points(configs, overrides)
    for point in points:
        check_possible(point.config)
    for finding in dict.fromkeys(finding for point in points for finding in distrusted_table(point.config)):
        _say(console, f"finding: {finding.name}: {finding.detail}")
    kinds = sorted({"slurm" if point.config.cluster.executor == "slurm" else "here" for point in points})
    if len(kinds) > 1:
        raise UsageError("cluster", "a sweep", "goes over this machine and Slurm at once", "make a campaign of each")
    plan = plan_campaign(points)
    config = points[0].config
    if config.campaign_dir is not None:
        check_same(plan, Path(config.campaign_dir))
    tasks = plan_tasks(plan, Path(config.campaign_dir or _NOWHERE))
    check_time(tasks)
    if config.dry_run:
        show_plan(plan, tasks, console)
        return 0
    largest = check_startable(plan)
    return carry_out(plan, campaign_directory(config), console, largest)


def check_startable(plan: Plan) -> int | None:
    """UsageError or FieldError for what can be known to fail, before anything is written; on a cluster, the largest
    array that Slurm takes."""
    kind = plan.points[0].config.cluster.executor
    check_executor(kind)
    check_memory(plan)
    if kind != "slurm" or not plan.missing:
        return None
    from crosspipe.campaign.slurm.submit import largest_array

    return largest_array()


def check_memory(plan: Plan) -> None:
    """FieldError where this machine is to profile a model that does not fit its memory: said before anything starts."""
    for reference in plan.missing:
        node = plan.graph.nodes[reference]
        asked = node.request.config
        here = not node.cluster.on_nodes and asked.get("device", "cpu") == "cpu"
        if node.request.stage == "blocks" and "costs" not in asked and here and not asked.get("estimate"):
            model, split = typed(asked["model"], ModelConfig), tuple(map(tuple, asked["layers"]))
            check_fits(model, split, asked["traversal"], free_bytes(), "this machine")


def retry(directory: Path, console: Console) -> int:
    """Makes what the campaign in `directory` still lacks: what failed, was blocked, cancelled or never begun.

    It goes on with the campaign's own measurements, whatever their age.
    """
    campaign = load_campaign(directory)
    points = tuple(
        Point(name=p.name, labels=p.labels, config=typed({**p.config, "store": campaign.store}), plain=p.config)
        for p in campaign.points
    )
    store = Store(campaign.store)
    measured = {f"{stage}/{p.keys[stage]}" for p in campaign.points for stage in ("links", "blocks") if stage in p.keys}
    known = [store.request(reference) for reference in measured if (store.directory(reference) / REQUEST).exists()]
    plan = plan_campaign(points, known)
    largest = check_startable(plan) if plan.missing else None
    return carry_out(plan, directory, console, largest)


def carry_out(plan: Plan, directory: Path, console: Console, largest: int | None = None) -> int:
    """Makes what `plan` misses, says how it went, and writes the report; returns the exit code.

    On a cluster it hands the work over, in arrays of at most `largest` jobs, and returns, unless told to wait.
    """
    started_s = time.monotonic()
    config = plan.points[0].config
    on_cluster = config.cluster.executor == "slurm"
    _say(console, f"campaign {directory}: {len(plan.points)} points")
    if not plan.missing:
        _say(console, f"nothing to do: the store has all {len(plan.cached)} artifacts")
    elif on_cluster:
        hand_over(plan, directory, console, largest)
    if on_cluster and plan.missing and not config.wait:
        _say(console, f"it goes on by itself; to look: crosspipe status {directory}")
        return 0
    reported: Outcome | None = None
    if on_cluster and plan.missing:
        summary, reported = _follow(plan, directory, console)
    else:
        with listener(console) as heard:
            summary = run_campaign(plan, directory, heard)
    show_summary(summary, console)
    failed = {name for node, _ in summary.failures for name in node.points}
    if reported is not None:
        _show_reported(directory, reported, console, config.cluster.patience_s)
    else:
        show_report(directory, console, strict=config.strict, one_machine=not on_cluster)
    unheard = [reference for reference in plan.missing if reference not in summary.outcomes]
    lacking = [reference for reference in unheard if plan.store.done(reference) is None]
    failed |= {name for reference in lacking for name in plan.graph.nodes[reference].points}
    done = len(plan.points) - len(failed)
    _say(console, f"{done} of {len(plan.points)} points done in {time.monotonic() - started_s:.0f} s: {directory}")
    fits_not = {
        name
        for node, outcome in summary.failures
        if does_not_fit(node.request.stage, outcome.status, outcome.reason)
        for name in node.points
    }
    if fits_not:
        one = len(fits_not) == 1
        words = "point does not fit" if one else "points do not fit"
        _say(
            console, f"{len(fits_not)} {words} the memory, which is a result: the report has {'it' if one else 'them'}"
        )
    if failed - fits_not:
        _say(console, f"what is lacking can be tried again: crosspipe retry {directory}")
    return 1 if failed else 0


def hand_over(plan: Plan, directory: Path, console: Console, largest: int | None = None) -> None:
    """Submits a campaign to Slurm, and says which jobs that made."""
    from crosspipe.campaign.slurm.submit import submit_campaign

    submitted = submit_campaign(plan, directory, lambda text: _say(console, text), largest=largest)
    if submitted.in_flight:
        _say(console, f"{len(submitted.in_flight)} artifacts are still being made by earlier jobs")
    numbers = ", ".join(f"{entry.stage} {entry.job}" for entry in submitted.new)
    if numbers:
        _say(console, f"submitted: {numbers}")


def _follow(plan: Plan, directory: Path, console: Console) -> tuple[Summary, Outcome | None]:
    """Follows a campaign on a cluster to its end, and to that of the job that writes the report, if it has one."""
    from crosspipe.campaign.slurm.follow import follow_campaign, follow_report

    config = plan.points[0].config
    try:
        with listener(console) as heard:
            summary = follow_campaign(plan, directory, heard, say=lambda text: _say(console, text))
        with console.status("waiting for the report's job") if console.is_terminal else contextlib.nullcontext():
            return summary, follow_report(directory, plan.store, config.cluster.patience_s)
    except KeyboardInterrupt:
        raise Stopped(
            f"no longer followed, but it goes on by itself; to look: crosspipe status {directory}, "
            f"to end it: crosspipe cancel {directory}"
        ) from None


def campaign_directory(config: PointConfig) -> Path:
    """The folder of a campaign, made: the one that was asked for, else a new one of its own.

    `campaigns/NAME` always leads to the newest of that name.
    """
    if config.campaign_dir is not None:
        directory = Path(config.campaign_dir)
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    name = re.sub(r"[^\w.+-]+", "-", config.name).strip("-.") or "campaign"
    directory = CAMPAIGNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    directory.mkdir(parents=True)
    link = CAMPAIGNS / name
    if link.is_symlink() or not link.exists():
        temporary = CAMPAIGNS / f".{directory.name}.link"
        with contextlib.suppress(OSError):  # a file system without links: the full name is printed anyway
            temporary.symlink_to(directory.name)
            temporary.replace(link)
    return directory


def _show_reported(directory: Path, reported: Outcome, console: Console, patience_s: float) -> None:
    """What the job that wrote the report said of it; CrosspipeError where it failed, or `strict` was broken."""
    if reported.job is not None and reported.log is not None:
        words = words_of_job(directory, patience_s if reported.status == "done" else 0.0)
        console.print(words, markup=False, highlight=False, soft_wrap=True, end="")
    if reported.status == "failed":
        raise CrosspipeError(f"{reported.reason}; log: {directory / (reported.log or 'logs')}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
