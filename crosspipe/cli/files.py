"""The verbs on files: solve, simulate, check, show, convert. No Hydra, no scheduler, no torch."""

from __future__ import annotations

import os
from argparse import Namespace
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from crosspipe.cli.console import console
from crosspipe.errors import ArtifactError, UsageError
from crosspipe.problem import BlockCosts, LinkTable, Problem
from crosspipe.schedule import Schedule, Timeline
from crosspipe.schedule import simulate as simulate_schedule
from crosspipe.store import RunRecord, load, read_timelines, save, write_timelines
from crosspipe.store.files import write_bytes

if TYPE_CHECKING:
    from crosspipe.solver import Progress

_PICTURES = (".svg", ".png", ".pdf", ".html")
_TIMELINES = (".json", ".parquet", ".trace.json", *_PICTURES)
_FORMATS = (".json", ".csv", ".trace.json", ".goal")
_KINDS: dict[str, type[msgspec.Struct]] = {
    "problem": Problem,
    "schedule": Schedule,
    "timeline": Timeline,
    "link_table": LinkTable,
    "block_costs": BlockCosts,
    "run_record": RunRecord,
}


def solve(options: Namespace) -> int:
    """`crosspipe solve PROBLEM.json`."""
    from crosspipe.solver import solve as solve_problem

    problem = load(options.problem, Problem)
    _check_output(options.output, ".json")
    with console(stderr=True).status(f"{options.schedule}: searching") as status:

        def hear(progress: Progress) -> None:
            status.update(
                f"{options.schedule}: {progress.makespan_ns / 1e6:.3f} ms, bound {progress.lower_bound_ns / 1e6:.3f}, "
                f"gap {progress.gap:.2%}, {progress.elapsed_s:.0f} s of {options.time_limit:g} s"
            )

        schedule = solve_problem(
            problem,
            options.schedule,
            time_limit_s=options.time_limit,
            workers=options.workers,
            seed=options.seed,
            pieces=options.pieces,
            progress=hear,
        )
    if options.output is not None:
        save(options.output, schedule)
    certificate = schedule.certificate
    if certificate is None:
        print(f"{schedule.name}: {simulate_schedule(problem, schedule).makespan_ns / 1e6:.3f} ms, no bound")
        return 0
    proven = "proven optimal" if certificate.optimal else f"at most {certificate.gap:.2%} above the optimum"
    print(f"{schedule.name}: {certificate.makespan_ns / 1e6:.3f} ms, {proven} (by {certificate.proven_by})")
    print(certificate.explanation)
    for assumption in certificate.assumptions:
        print(f"assuming {assumption}")
    return 0


def simulate(options: Namespace) -> int:
    """`crosspipe simulate PROBLEM.json SCHEDULE`."""
    problem = load(options.problem, Problem)
    _check_output(options.output, *_TIMELINES)
    timeline = simulate_schedule(problem, _read_schedule(options.schedule))
    if options.output is not None:
        _write_timeline(options.output, timeline)
        print(options.output)
    _show_timeline(timeline)
    return 0


def check(options: Namespace) -> int:
    """`crosspipe check PROBLEM.json SCHEDULE`: 1, and a line each, where there are violations."""
    from crosspipe.schedule import check as check_schedule

    problem = load(options.problem, Problem)
    schedule = _read_schedule(options.schedule)
    violations = check_schedule(problem, schedule)
    for violation in violations:
        print(f"{violation.kind}: {violation.message}")
    if not violations:
        print(f"valid: {simulate_schedule(problem, schedule).makespan_ns / 1e6:.3f} ms")
    return 1 if violations else 0


def show(options: Namespace) -> int:
    """`crosspipe show FILE`."""
    _check_output(options.output, *_PICTURES)
    if options.file.suffix == ".parquet":
        timelines = read_timelines(options.file)
        if not timelines:
            raise ArtifactError(f"{options.file}: holds no timeline; give one of a finished run")
        found: msgspec.Struct = timelines[-1]
    elif options.file.suffix == ".csv":
        found = _read_schedule(options.file)
    else:
        found = _read_any(options.file)
    timeline, note = _timeline_of(found, options)
    if options.output is not None:
        if timeline is None:
            kind = found.__struct_config__.tag
            raise UsageError("-o", str(options.output), f"a {kind} has no timeline to draw", "show it in the terminal")
        _draw(options.output, timeline, _heading(found, timeline))
        print(options.output)
        return 0
    if note:
        print(note)
    if timeline is not None:
        _show_timeline(timeline)
    describe = _DESCRIPTIONS.get(type(found))
    if describe is not None:
        console().print(describe(found))
    return 0


def convert(options: Namespace) -> int:
    """`crosspipe convert IN OUT`."""
    from crosspipe.schedule import formats

    source, target = options.source, options.target
    _check_output(target, *_FORMATS, option="OUT")
    problem = None if options.problem is None else load(options.problem, Problem)
    content: msgspec.Struct
    if source.suffix == ".json":
        content = _read_any(source)
    elif source.suffix == ".parquet":
        content = read_timelines(source)[-1]
    else:
        content = formats.read(source)
    if not isinstance(content, Schedule | Timeline):
        kind = content.__struct_config__.tag
        raise UsageError("IN", str(source), f"is a {kind}", "give a schedule or a timeline")
    if target.name.endswith(".json") and not target.name.endswith(".trace.json"):
        save(target, content)
    else:
        formats.write(target, content, problem)
    print(target)
    return 0


def _check_output(path: Path | None, *suffixes: str, option: str = "-o") -> None:
    """Refuses a place or format that cannot be written, before any work is done for it."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(option, str(path), "is a folder", "give a file in it")
    if not path.name.endswith(suffixes):
        raise UsageError(option, str(path), "no such format here", f"use {', '.join(suffixes)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(option, str(path), f"{path.parent} is no folder that can be written", "give another place")


def _read_schedule(path: Path) -> Schedule:
    """A schedule from our JSON, or from a format of others by its extension."""
    if path.suffix == ".json":
        return load(path, Schedule)
    from crosspipe.schedule import formats

    return formats.read(path)


def _read_any(path: Path) -> msgspec.Struct:
    """Whatever typed JSON `path` is."""

    class Kind(msgspec.Struct):
        type: str = ""

    try:
        kind = msgspec.json.decode(path.read_bytes().removeprefix(BOM_UTF8), type=Kind).type
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; give a {', '.join(_KINDS)} in JSON") from None
    except (OSError, msgspec.DecodeError):
        kind = "problem"  # cannot be read, or is no JSON: loading it says so in one line
    if kind not in _KINDS:
        raise ArtifactError(f"{path}: type = {kind!r}: nothing to show; give one of {', '.join(_KINDS)}")
    return load(path, _KINDS[kind])


def _timeline_of(found: msgspec.Struct, options: Namespace) -> tuple[Timeline | None, str]:
    """The timeline behind an artifact, if there is one, and what to say about it."""
    if isinstance(found, Timeline):
        return found, ""
    if isinstance(found, Schedule):
        if options.problem is not None:
            problem = load(options.problem, Problem)
            note = (
                "" if _made_for(problem, found) else "this schedule and its certificate were made for another problem"
            )
            return simulate_schedule(problem, found), note
        beside = options.file.parent / "problem.json"
        if beside.exists() and _made_for(problem := load(beside, Problem), found):
            return simulate_schedule(problem, found), f"on {beside}"
        return simulate_schedule(_unit_problem(found), found), "every block 1 ms, no delays; real ones with --problem"
    if isinstance(found, RunRecord):
        measured = options.file.parent / "timelines.parquet"
        if measured.exists() and (timelines := read_timelines(measured)):
            return timelines[-1], "the last measured iteration"
    return None, ""


def _made_for(problem: Problem, schedule: Schedule) -> bool:
    """Whether a schedule is one of this problem; one from elsewhere does not say, and then its shape decides."""
    if schedule.problem_digest:
        return schedule.problem_digest == problem.digest()
    shape = (schedule.traversal, schedule.stages, schedule.chunks, schedule.microbatches)
    return shape == (problem.traversal, problem.stages, problem.chunks, problem.microbatches)


def _unit_problem(schedule: Schedule) -> Problem:
    """Equal blocks of 1 ms and no delays: enough to draw an order."""
    pieces = max((block.pieces for order in schedule.orders for block in order), default=1)
    chunks = schedule.chunks
    return Problem.uniform(
        traversal=schedule.traversal, stages=schedule.stages, microbatches=schedule.microbatches, chunks=chunks,
        forward_ms=chunks, input_grad_ms=chunks, weight_grad_ms=chunks, weight_grad_pieces=pieces,
    )  # fmt: skip


def _write_timeline(path: Path, timeline: Timeline) -> None:
    if path.suffix in _PICTURES:
        _draw(path, timeline)
    elif path.suffix == ".parquet":
        write_timelines(path, [timeline])
    elif path.name.endswith(".trace.json"):
        from crosspipe.schedule import formats

        formats.write(path, timeline)
    else:
        save(path, timeline)


def _heading(found: msgspec.Struct, timeline: Timeline) -> str:
    """What a picture is called: a schedule's name and, on the problem it was made for, what is proven of it."""
    if not isinstance(found, Schedule):
        return ""
    certificate, name = found.certificate, found.name or "schedule"
    if certificate is None or certificate.makespan_ns != timeline.makespan_ns:
        return name
    return f"{name}, optimal" if certificate.optimal else f"{name}, gap {certificate.gap:.2%}"


def _draw(path: Path, timeline: Timeline, heading: str = "") -> None:
    from crosspipe.schedule.drawing import draw_timeline, gantt_svg

    if path.suffix in (".png", ".pdf"):
        draw_timeline({heading: timeline}, memory=True).savefig(path)
        return
    svg = gantt_svg({heading or timeline.origin: timeline}, memory=True)
    page = f"<!doctype html><meta charset='utf-8'><title>{timeline.origin} timeline</title>\n{svg}"
    write_bytes(path, (page if path.suffix == ".html" else svg).encode())


def _show_timeline(timeline: Timeline) -> None:
    from crosspipe.schedule.drawing import draw_terminal

    out = console()
    out.print(draw_terminal(timeline, min(out.width, 160)))
    peaks = timeline.peak_memory_bytes()
    table = Table()
    for head in ("stage", "busy ms", "idle", "peak activations MiB"):
        table.add_column(head, justify="right")
    for stage in range(timeline.stages):
        memory = f"{peaks[stage] / 2**20:.2f}" if stage < len(peaks) else ""
        idle = f"{timeline.bubble_ratio(stage):.1%}"
        table.add_row(str(stage), f"{timeline.busy_ns(stage) / 1e6:.3f}", idle, memory)
    out.print(table)


def _describe_problem(problem: Problem) -> RenderableType:
    title = (
        f"{problem.traversal}, {problem.stages} stages x {problem.chunks} chunks, {problem.microbatches} microbatches, "
        f"T_F {problem.forward_reference_ns() / 1e6:.3f} ms"
    )
    table = Table(title=title, title_justify="left")
    for head in (
        "position",
        "stage",
        "site",
        "F ms",
        "D ms",
        "W ms",
        "keeps MiB",
        "limit MiB",
        "to next ms",
        "to previous ms",
    ):
        table.add_column(head, justify="right")
    for position in range(problem.positions):
        stage, chunk = problem.place(position)
        cost, limit = problem.costs[stage][chunk], problem.activation_limit_bytes[stage]
        cells = [f"{position}", f"{stage}", f"{problem.sites[stage]}"]
        cells += [f"{ns / 1e6:.3f}" for ns in (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns)]
        cells += [f"{cost.forward_keep_bytes / 2**20:.2f}", "" if limit is None else f"{limit / 2**20:.2f}"]
        for kind in "FD":
            hop = problem.hop(kind, position)
            cells.append("" if hop is None else f"{hop.latency_ns / 1e6:.3f} + {hop.serialisation_ns / 1e6:.3f}")
        table.add_row(*cells)
    return table


def _describe_schedule(schedule: Schedule) -> RenderableType:
    certificate = schedule.certificate
    lines = [f"{schedule.name or 'schedule'}: {schedule.traversal}, {schedule.stages} stages"]
    if certificate is not None:
        proven = "optimal" if certificate.optimal else f"gap {certificate.gap:.2%}"
        lines.append(f"{certificate.makespan_ns / 1e6:.3f} ms, {proven}, by {certificate.proven_by}")
        lines.append(certificate.explanation)
    return Text("\n".join(lines))


def _describe_links(table: LinkTable) -> RenderableType:
    shown = Table(title="measured links", title_justify="left")
    for head in ("from", "to", "sites", "transport", "alpha us", "Gbit/s", "misfit"):
        shown.add_column(head, justify="right")
    for link in table.links:
        rate = "" if link.bandwidth_bytes_per_s is None else f"{link.bandwidth_bytes_per_s * 8 / 1e9:.2f}"
        sites = f"{table.site_of_rank[link.source]} > {table.site_of_rank[link.target]}"
        shown.add_row(
            str(link.source), str(link.target), sites, link.transport, f"{link.latency_ns / 1e3:.1f}", rate,
            f"{link.residual:.1%}",
        )  # fmt: skip
    return shown


def _describe_blocks(costs: BlockCosts) -> RenderableType:
    table = Table(title=f"{costs.origin} blocks, {costs.traversal}", title_justify="left")
    for head in ("stage", "chunk", "layers", "F ms", "D ms", "W ms", "B ms", "keeps MiB", "sends KiB"):
        table.add_column(head, justify="right")
    for stage, row in enumerate(costs.blocks):
        for chunk, cost in enumerate(row):
            layers = str(costs.layers[stage][chunk]) if costs.layers else ""
            times = (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns, cost.backward_ns)
            cells = [str(stage), str(chunk), layers, *(f"{ns / 1e6:.3f}" for ns in times)]
            cells += [f"{cost.forward_keep_bytes / 2**20:.2f}", f"{cost.forward_message_bytes / 1024:.0f}"]
            table.add_row(*cells)
    return table


def _describe_run(record: RunRecord) -> RenderableType:
    table = Table(
        title=f"{record.schedule_name}, {record.origin}, predicted {record.predicted_iteration_ns / 1e6:.2f} ms",
        title_justify="left",
    )
    for head in ("iteration", "ms", "raw makespan ms", "late blocks", "late messages", "loss"):
        table.add_column(head, justify="right")
    for i in record.iterations:
        name = f"{i.index} (warm-up)" if i.warmup else str(i.index)
        times = (f"{i.iteration_ns / 1e6:.2f}", f"{i.raw_makespan_ns / 1e6:.2f}")
        table.add_row(name, *times, str(i.late_blocks), str(i.late_messages), f"{i.loss:.4f}")
    return table


_DESCRIPTIONS: dict[type, Callable[..., RenderableType]] = {
    Problem: _describe_problem,
    Schedule: _describe_schedule,
    LinkTable: _describe_links,
    BlockCosts: _describe_blocks,
    RunRecord: _describe_run,
}
