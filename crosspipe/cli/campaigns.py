"""The verbs on campaigns and their surroundings: run, status, watch, cancel, retry, report, store, doctor."""

from __future__ import annotations

import shutil
import textwrap
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from crosspipe.cli.console import console

_WATCH_AT_MOST_S = 30.0


def run(arguments: Sequence[str]) -> int:
    """`crosspipe run`: composes the points with Hydra and carries the campaign out."""
    if "-h" in arguments or "--help" in arguments:
        _run_help()
        return 0
    from crosspipe.campaign.hydra_app import compose_and_launch
    from crosspipe.campaign.launch import launch

    codes: list[int] = []

    def begin(configs: list[dict[str, Any]], overrides: list[list[str]]) -> None:
        codes.append(launch(configs, overrides, console()))

    compose_and_launch(arguments, begin)
    return max(codes, default=0)


def _run_help() -> None:
    from crosspipe.campaign.configs import all_groups

    print("""usage: crosspipe run [KEY=VALUE ...] [GROUP=CHOICE ...]

Measures links and blocks, solves, trains and reports. Values separated by commas make a sweep: one campaign, in which
shared work is done once and what the store already has is not done again.

examples:
  crosspipe run experiment=demo                                            a set-up by name
  crosspipe run schedule=1f1b,zbh1,cross_ud network.delay=[0,0],[1,0.25]   six points
  crosspipe run experiment=demo schedule=cross_ud run.iterations=20        an experiment, changed
  crosspipe run experiment=demo until=solve                                predict only

common overrides:
  until=profile|solve|run          where the road ends
  dry_run=true                     print the graph, what is cached and the jobs; touch nothing
  strict=true                      findings make the campaign fail
  cluster=NAME wait=true           on a cluster: hand it over to Slurm, and follow it until it ends
  store=DIR campaign_dir=DIR       where artifacts and the campaign go
  pipeline.sites=2 pipeline.stages=4 pipeline.microbatches=8 pipeline.memory_microbatches=4
  network.delay=[1,0.25]           [T_lat/T_F, T_bw/T_F]; or network.latency_ratio=1 network.bandwidth_ratio=0.25
  solver.time_limit_s=60 run.pace=3 run.iterations=10 profile.refresh=true

Hydra's own options: --cfg job (print the configuration), --info, -m, --config-dir DIR, --hydra-help.
""")
    print("groups (your own ./conf is searched first):")
    for group, choices in all_groups().items():
        print(f"  {group}")
        for choice, about in choices.items():
            print(f"    {f'{group}={choice}':<28} {textwrap.shorten(about, 100, placeholder=' …')}")


def status(options: Namespace) -> int:
    """`crosspipe status DIR`; 1 where something failed or is blocked."""
    from crosspipe.campaign.status import campaign_status

    found = campaign_status(options.directory)
    out = console()
    out.print(_status_table(found))
    for trouble in found.troubles:
        outcome = trouble.outcome
        out.print(
            Text(f"{outcome.stage} {outcome.status}: {', '.join(trouble.points[:4])}: {outcome.reason}", style="red"),
            soft_wrap=True,
        )
        if outcome.status == "failed" and trouble.log is not None and trouble.log.exists():
            said = "" if not trouble.last_lines or outcome.reason in trouble.last_lines else f": {trouble.last_lines}"
            out.print(f"    log {trouble.log}{said}", markup=False, highlight=False, soft_wrap=True)
    if found.unheard:
        out.print(Text(f"what its jobs do is not known: {found.unheard}", style="yellow"), soft_wrap=True)
    for note in found.notes:
        out.print(Text(note, style="yellow"), soft_wrap=True)
    if found.scheduled:
        _offer_to_exclude(options, out)
    if found.finished and not found.complete:
        out.print(
            f"nobody works on it now; to go on with the same settings: crosspipe retry {options.directory}, "
            f"with others: crosspipe run ... campaign_dir={options.directory}",
            markup=False,
            soft_wrap=True,
        )
    return 1 if found.troubles else 0


def _offer_to_exclude(options: Namespace, out: Console) -> None:
    from crosspipe.campaign.slow import slow_nodes

    slow = slow_nodes(options.directory)
    for node, why in slow.items():
        out.print(f"slow node {node}: {why}", markup=False, highlight=False, soft_wrap=True)
    if slow:
        override = f"++cluster.resources.run.exclude='{','.join(slow)}'"
        out.print(f'to leave them out: crosspipe run ... "{override}"', markup=False, highlight=False, soft_wrap=True)


def watch(options: Namespace) -> int:
    """`crosspipe watch DIR`: the status, again and again, until nothing more happens.

    A scheduler is asked ever less often while nothing ends.
    """
    from crosspipe.campaign.status import campaign_status

    pause_s, ended = options.interval, -1
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            found = campaign_status(options.directory)
            live.update(_status_table(found), refresh=True)
            if found.finished:
                break
            before, ended = ended, sum(stage.done + stage.failed + stage.blocked for stage in found.stages)
            if found.scheduled:
                pause_s = max(options.interval, 3.0) if ended != before else min(pause_s * 1.3, _WATCH_AT_MOST_S)
            time.sleep(pause_s)
    return status(options)


def _status_table(found: Any) -> Table:
    table = Table(title=f"{found.name}: {found.points} points", title_justify="left")
    columns = ("stage", "done", "running", "waiting", "failed", "blocked", "now")
    for name in columns:
        table.add_column(name, justify="left" if name in ("stage", "now") else "right")
    for stage in found.stages:
        table.add_row(*(Text(str(getattr(stage, name) or "")) for name in columns))
    return table


def cancel(options: Namespace) -> int:
    """`crosspipe cancel DIR`."""
    from crosspipe.campaign.status import cancel_campaign

    ended = cancel_campaign(options.directory, say=print)
    print(f"ended {ended} jobs and processes" if ended else "nothing of it waits or runs")
    return 0


def retry(options: Namespace) -> int:
    """`crosspipe retry DIR`."""
    from crosspipe.campaign.launch import retry as again

    return again(options.directory, console())


def report(options: Namespace) -> int:
    """`crosspipe report DIR`."""
    from crosspipe.report import build_report

    built = build_report(options.directory, options.store, options.output, strict=options.strict)
    out = console()
    out.print(built.table)
    for finding in built.findings:
        out.print(f"finding: {finding.name}: {finding.detail}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"report: {built.path}", markup=False, highlight=False, soft_wrap=True)
    return 0


def store(options: Namespace) -> int:
    """`crosspipe store ls|gc`."""
    from crosspipe.store import Store
    from crosspipe.store.upkeep import collect, listing

    if options.action == "gc":
        gone = collect(Store(options.store), dry_run=options.dry_run)
        size = sum(artifact.size_bytes for artifact in gone)
        verb = "would remove" if options.dry_run else "removed"
        print(f"{verb} {len(gone)} artifacts, {size / 2**20:.1f} MiB; what a campaign uses stays")
        return 0
    table = Table(title=str(options.store), title_justify="left")
    for name in ("artifact", "state", "KiB", "age", "campaigns", "inputs changed"):
        table.add_column(name, justify="right" if name in ("KiB", "age", "campaigns") else "left")
    for artifact in listing(Store(options.store)):
        stage, _, key = artifact.reference.partition("/")
        cells = (
            f"{stage}/{key[:12]}",
            artifact.state,
            f"{artifact.size_bytes / 1024:.0f}",
            _age(artifact.age_s),
            str(len(artifact.campaigns)),
            ", ".join(artifact.stale),
        )
        table.add_row(*map(Text, cells))
    console().print(table)
    return 0


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def doctor(options: Namespace) -> int:
    """`crosspipe doctor`; 1 where something is missing that the demo needs."""
    from crosspipe.campaign.doctor import examine

    out = console()
    marks = {"ok": "[green]ok[/]      ", "missing": "[red]missing[/] ", "note": "[yellow]note[/]    "}
    found = examine(options.store)
    for item in found:
        out.print(marks[item.state], Text(f"{item.name:<14} {item.detail}"), soft_wrap=True)
        if item.remedy:
            out.print(Text(f"         {'':<14} -> {item.remedy}"), soft_wrap=True)
    if any(item.name == "Slurm" and item.state == "ok" for item in found) and shutil.which("sbatch"):
        _propose_cluster(out)
    return int(any(item.state == "missing" for item in found))


def _propose_cluster(out: Console) -> None:
    """A cluster configuration for this site, tried with sbatch --test-only on a pipeline of four stages."""
    from crosspipe.campaign.slurm import propose
    from crosspipe.campaign.slurm.queue import SlurmError

    try:
        proposal = propose.propose(propose.facts())
    except SlurmError as error:
        out.print(Text(f"no cluster configuration can be proposed: {error}"), soft_wrap=True)
        return
    out.print(Text(f"\na cluster configuration to begin with; save it as conf/cluster/{proposal['name']}.yaml:\n"))
    out.print(Text(propose.text(proposal)), soft_wrap=True)
    site_of_rank = (0, 0, 1, 1) if len(proposal["sites"]) != 1 else (0, 0, 0, 0)
    for answer in propose.try_out(proposal, site_of_rank):
        mark = "[green]taken[/]  " if answer.taken else "[red]refused[/]"
        out.print(mark, Text(f"{answer.stage:<7} {answer.said} (sbatch --test-only, four stages)"), soft_wrap=True)
