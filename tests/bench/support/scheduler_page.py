"""The page of the scheduler's bar: verdicts first, then one table a family, and what every miss hangs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from support.bar import RANDOM_SHARE, Verdict, judge
from support.driver import Found
from support.instances import (
    DELAYS,
    FULL_LIMIT_S,
    RANDOM,
    RANDOM_PROBLEMS,
    REPORTED_LIMIT_S,
    UNIFORM,
    Family,
    Instance,
)
from support.page import interval_words, letters_of, milliseconds, percent, seconds, table
from support.results import Cell, Speed
from support.speeds import MICROBATCHES, STAGES, Bench

INTRODUCTION = f"""\
What `solve(problem, "cross_ud")`, `"cross_wave"` and `"cross_loop"` reach, and what is proven of it. "8x16, limit 8" is
8 stages, 16 microbatches, memory for 8 microbatches' activations a stage. Block times F 38, D 46, W 21 ms a stage (M70
of the CrossPipe paper); delays are latency and serialisation of one message between sites over T_F = 38 ms, on two
sites unless said. With recomputation F keeps the stage's input only, and D is longer by one F. A search ends with
the proof or at its limit: {FULL_LIMIT_S:g} s, or {REPORTED_LIMIT_S:g} s where results are only reported or the first
schedule alone is judged; each family says its own. The compiled code is warm.

*gap* is makespan over proven lower bound, less one. *static* is the best schedule of a static family that fits the same
memory, with the makespan against it. *first* is the time to the first schedule. Every schedule is checked and re-timed
by both performance models; a fault, or a makespan above the best static one, makes a verdict of its own.

The five pairs of delays are {", ".join(f"({a:g}, {b:g})" for a, b in DELAYS)}."""


def scheduler_page(instances: Sequence[Instance], benches: Sequence[Bench], found: Found) -> list[str]:
    """The parts of the page, of whatever results there are."""
    letters = letters_of(dict.fromkeys(str(setup) for setup, _ in found.values()))
    marked: dict[str, list[tuple[Instance, Cell, str]]] = {}
    for instance in instances:
        if instance.key in found:
            setup, cell = found[instance.key]
            assert isinstance(cell, Cell)
            marked.setdefault(instance.family, []).append((instance, cell, letters[str(setup)].strip()))
    uniform = [_family(family, marked[family.name]) for family in UNIFORM if family.name in marked]
    parts = [INTRODUCTION, _summary(instances, marked), *uniform]
    if RANDOM.name in marked:
        parts.append(_random(marked[RANDOM.name]))
    parts.append(_speeds(benches, found))
    parts.append(_misses(marked, benches, found))
    return parts


def _verdict(instance: Instance, cell: Cell) -> Verdict:
    return judge(cell, instance.family, instance.traversal, instance.label)


def _summary(instances: Sequence[Instance], marked: Mapping[str, Sequence[tuple[Instance, Cell, str]]]) -> str:
    rows = []
    for family in (*UNIFORM, RANDOM):
        wanted = [i for i in instances if i.family == family.name]
        cells = marked.get(family.name, [])
        if not wanted:
            continue
        verdicts = [_verdict(instance, cell) for instance, cell, _ in cells]
        asked = [v for v in verdicts if v.missed is not None]
        rows.append(
            [
                family.name,
                f"{len(cells)} of {len(wanted)}",
                ", ".join(f"{limit:g}" for limit in sorted({cell.time_limit_s for _, cell, _ in cells})),
                str(sum(cell.proved for _, cell, _ in cells)),
                f"{sum(not v.missed for v in asked)} of {len(asked)}" if asked else "–",
                str(sum(bool(cell.faults) for _, cell, _ in cells)),
                str(sum(cell.worse_than_static for _, cell, _ in cells)),
            ]
        )
    heads = ["family", "measured", "limit s", "proved optimal", "musts met", "invalid", "worse than static"]
    return "## Summary\n\n" + table(heads, rows)


def _family(family: Family, cells: Sequence[tuple[Instance, Cell, str]]) -> str:
    rows = []
    for instance, cell, letter in cells:
        verdict = _verdict(instance, cell)
        proved = f"{cell.proven_by}" + (f" {letter}" if letter else "")
        rows.append(
            [
                instance.traversal,
                instance.label,
                proved,
                milliseconds(cell.makespan_ns),
                milliseconds(cell.lower_bound_ns),
                percent(cell.gap),
                seconds(cell.wall_s),
                seconds(cell.first_s),
                _static(cell),
                verdict.must,
                verdict.aim,
                verdict.words,
            ]
        )
    measured = ["makespan ms", "bound ms", "gap", "time s", "first s", "static"]
    heads = ["traversal", "delays", "bound by", *measured, "must", "aim", "verdict"]
    note = f" ({family.note})" if family.note else ""
    limits = {instance.traversal: cell.time_limit_s for instance, cell, _ in cells}
    words = ", ".join(f"{traversal} {limit_s:g} s" for traversal, limit_s in limits.items())
    return f"## {family.name}{note}\n\nTime limits: {words}.\n\n" + table(heads, rows, text_columns=3)


def _static(cell: Cell) -> str:
    best = cell.best_static
    if best is None:
        return "none fits"
    name, makespan_ns = best
    return f"{name} {milliseconds(makespan_ns)} ({100 * (cell.makespan_ns / makespan_ns - 1):+.1f} %)"


def _random(cells: Sequence[tuple[Instance, Cell, str]]) -> str:
    def in_time(cell: Cell) -> bool:
        return cell.proved and not cell.faults and cell.wall_s <= RANDOM.time_limit_s

    proved = [cell for _, cell, _ in cells if in_time(cell)]
    share = len(proved) / len(cells)
    limit = max(cell.time_limit_s for _, cell, _ in cells)
    if len(cells) < RANDOM_PROBLEMS or limit < RANDOM.time_limit_s:
        judged = f"not judged; the bar is {RANDOM_PROBLEMS} problems and {RANDOM.time_limit_s:g} s"
    else:
        judged = "aim met" if share == 1 else "must met" if share >= RANDOM_SHARE else "**must missed**"
    lines = [
        "## Random heterogeneous 4x8, ud",
        "Every stage its own block times (W may exceed D), memory split and limit of 2 to 8 microbatches; two or four "
        "sites; every boundary its own latency and serialisation up to 2 T_F. Must: 95 % proved in 6 s each; aim: all.",
        f"{len(proved)} of {len(cells)} proved in {RANDOM.time_limit_s:g} s each ({percent(share)}): {judged}.",
    ]
    if proved:
        times = sorted(cell.wall_s for cell in proved)
        lines[-1] += f" Time to proof: median {seconds(median(times))} s, longest {seconds(times[-1])} s."
    rest = [(i, c) for i, c, _ in cells if not in_time(c)]
    if rest:
        rows = [
            [
                i.label,
                milliseconds(c.makespan_ns),
                milliseconds(c.lower_bound_ns),
                percent(c.gap),
                seconds(c.wall_s),
                _static(c),
            ]
            for i, c in rest
        ]
        lines.append("The others:\n\n" + table(["problem", "makespan ms", "bound ms", "gap", "time s", "static"], rows))
    return "\n\n".join(lines)


def _speeds(benches: Sequence[Bench], found: Found) -> str:
    rows = []
    for bench in benches:
        if bench.key not in found:
            continue
        speed = found[bench.key][1]
        assert isinstance(speed, Speed)
        met = {True: "must met", False: "**missed**", None: "reported"}[bench.met_by(speed)]
        rows.append([bench.key, speed.unit, *interval_words(speed.spread), bench.must_words(), met])
    heads = ["what", "unit", "median", "95 % interval", "samples", "must", "verdict"]
    where = f"On {STAGES}x{MICROBATCHES}, one core, compiled, two sites, latency and serialisation T_F each."
    return f"## Speeds\n\n{where}\n\n" + table(heads, rows, text_columns=2) if rows else ""


def _misses(marked: Mapping[str, Sequence[tuple[Instance, Cell, str]]], benches: Sequence[Bench], found: Found) -> str:
    lines = []
    for cells in marked.values():
        for instance, cell, _ in cells:
            verdict = _verdict(instance, cell)
            if verdict.missed:
                why = "; ".join(cell.faults) or cell.explanation
                reached = f"{percent(cell.gap)} after {seconds(cell.wall_s)} s"
                lines.append(f"- {instance.key}: {reached} (must: {verdict.must}): {why}")
    for bench in benches:
        speed = found[bench.key][1] if bench.key in found else None
        if isinstance(speed, Speed) and bench.met_by(speed) is False:
            lines.append(f"- {bench.key}: {speed.spread.median:.4g} {bench.unit} (must: {bench.must_words()})")
    return "## What falls short\n\n" + ("\n".join(lines) or "Nothing that was measured.")
