"""What Table 5 does not say: what latency each cell stands, what would help it most, what memory and batch buy.

crosspipe run experiment=table5
python analysis/insight.py campaigns/table5

It searches again for each change, each time from the cell's own schedule, so that no relief can look like a loss: some
minutes. `crosspipe advise` asks the same of a Problem of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import msgspec
import polars as pl
from cases import place, problem_of
from causes import EXACT, GIB, per_microbatch_s, with_limit
from table5 import HEAD, cells, loaded, problems

from crosspipe.problem import Problem
from crosspipe.report.export import needed, options, run, unfinished, write_figure, write_table
from crosspipe.report.figures import INK, paper_style, series
from crosspipe.report.results import Results
from crosspipe.report.wording import MISSING
from crosspipe.schedule import Schedule
from crosspipe.solver import solve
from crosspipe.solver.advice import Choice, neighbours, tolerance_ns

SEARCH_S = 1.5  # each
FRONT_MICROBATCHES = (16, 32)
FRONT_MEMORY = (6, 8, 12, 16, 24)  # microbatches that a stage may hold
LARGER_BATCH = "2 × the microbatches"  # as `neighbours` calls it: it changes the training, so it is ranked apart
EXPLAINED = (
    "Latency: the largest one across sites at which the time of the same order has grown by 1 % or 5 % (any: it never "
    "does). Changes are searched for {seconds:g} s each, from the cell's schedule, in both traversals, and judged by "
    "the time per microbatch; a larger batch changes the training and stands apart."
)


class Cell(NamedTuple):
    """A cell of the table: its case and delay, its best schedule and the Problems of both traversals."""

    case: int
    delay: str
    name: str
    schedule: Schedule
    problem: Problem
    problems: dict[str, Problem]
    static: tuple[Problem, Schedule] | None  # None: no static one fits, or none is solved
    zbv_s: float | None  # ZB-V without delay in this case

    @property
    def takes_s(self) -> float:
        """Seconds per microbatch."""
        return per_microbatch_s(self.problem, self.schedule)


def table_cells(results: Results) -> Iterator[Cell]:
    """The cells in which a schedule of ours is solved."""
    points = place(results)
    for row in cells(results):
        here = points.filter(pl.col("case") == row["case"])
        own = here.filter(pl.col("delay") == row[HEAD])
        free = here.filter(pl.col("schedule") == "zbv", pl.col("delay") == "(0, 0)")
        best = own.filter(pl.col("schedule") == row["our best"])["point"].item()
        static = own.filter(pl.col("schedule") == (row["best static"] or ""))["point"].to_list()
        yield Cell(
            case=row["case"],
            delay=row[HEAD],
            name=row["our best"],
            schedule=_schedule(results, best),
            problem=problem_of(results, best),
            problems=problems(results, own),
            static=(problem_of(results, static[0]), _schedule(results, static[0])) if static else None,
            zbv_s=free["s_per_microbatch"].item() if free.height else None,
        )


def _schedule(results: Results, point: str) -> Schedule:
    schedule = results.artifacts[point].schedule
    assert schedule is not None
    return schedule


def largest_latency_ms(problem: Problem, schedule: Schedule, growth: float) -> float | None:
    """Latency across sites at which the makespan of the order has grown by `growth`; None: at none."""
    makespan = round(per_microbatch_s(problem, schedule) * problem.microbatches * 1e9)
    choice = Choice(name=schedule.name, problem=problem, schedule=schedule, makespan_ns=makespan)
    more = tolerance_ns(choice, growth)
    hops = [h for k, h in enumerate(problem.forward_hops) if problem.crosses_sites("F", k)]
    return None if more is None else (max(h.latency_ns for h in hops) + more) / 1e6


def searched(problem: Problem, start: Iterable[Schedule]) -> tuple[Schedule, float, float]:
    """The best schedule found from some others, its time in s per microbatch, and its gap in percent."""
    fitting = [s for s in start if (s.traversal, s.microbatches) == (problem.traversal, problem.microbatches)]
    found = solve(problem, EXACT[problem.traversal], time_limit_s=SEARCH_S, hint=fitting)
    assert found.certificate is not None
    return found, per_microbatch_s(problem, found), found.certificate.gap * 100


def twice(schedule: Schedule) -> Schedule:
    """A schedule for twice the microbatches, one batch behind the other: no slower per microbatch, and held no more."""
    count = schedule.microbatches
    orders = tuple((*row, *(b._replace(microbatch=b.microbatch + count) for b in row)) for row in schedule.orders)
    return msgspec.structs.replace(schedule, microbatches=2 * count, orders=orders, messages={}, certificate=None)


def changes(cell: Cell, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every single change of `crosspipe advise`, with the best schedule of both traversals for it."""
    found: dict[str, tuple[Schedule, float, float]] = {}
    start = (cell.schedule, twice(cell.schedule))
    for problem in cell.problems.values():
        for words, changed in neighbours(problem):
            say(f"case {cell.case}, {cell.delay}: {words}, {changed.traversal}")
            made = searched(changed, start)
            if words not in found or made[1] < found[words][1]:
                found[words] = made
    return [
        {
            "case": cell.case, HEAD: cell.delay, "change": words, "schedule": made.name, "ms/microbatch": takes_s * 1e3,
            "saved_percent": (1 - takes_s / cell.takes_s) * 100, "gap_percent": gap,
        }
        for words, (made, takes_s, gap) in sorted(found.items(), key=lambda item: item[1][1])
    ]  # fmt: skip


def insight(cell: Cell, changed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cell's row: what latency it stands, what helps most, how it compares with no delay at all."""
    apart = [row for row in changed if row["change"] == LARGER_BATCH]
    best = max((row for row in changed if row["change"] != LARGER_BATCH), key=lambda row: row["saved_percent"])
    helps = best["saved_percent"] >= 0.5
    ours = (cell.problem, cell.schedule)
    return {
        "case": cell.case,
        HEAD: cell.delay,
        "schedule": cell.name,
        "ms/microbatch": cell.takes_s * 1e3,
        "latency for +1 %, ms": _or_any(largest_latency_ms(*ours, 0.01)),
        "latency for +5 %, ms": _or_any(largest_latency_ms(*ours, 0.05)),
        "best static for +5 %, ms": _or_any(largest_latency_ms(*cell.static, 0.05)) if cell.static else MISSING,
        "helps most": best["change"] if helps else "nothing by 0.5 %",
        "saves_percent": best["saved_percent"] if helps else None,
        "2 × batch saves_percent": apart[0]["saved_percent"] if apart else None,
        "over ZB-V without delay": cell.takes_s / cell.zbv_s if cell.zbv_s else None,
    }


def _or_any(value: float | None) -> str:
    return "any" if value is None else f"{value:.1f}"


def front(cell: Cell, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Times by memory and microbatches at the delay of a cell of case 1; more memory starts from the order of less."""
    for microbatches in FRONT_MICROBATCHES:
        for traversal, problem in cell.problems.items():
            limit = problem.activation_limit_bytes[0]
            assert limit is not None
            unit, start = limit // 8, [cell.schedule, twice(cell.schedule)]
            for memory in FRONT_MEMORY:
                say(f"{cell.delay}: {microbatches} microbatches, memory of {memory}, {traversal}")
                sized = with_limit(msgspec.structs.replace(problem, microbatches=microbatches), memory * unit)
                made, takes_s, gap = searched(sized, start)
                start = [made, *start]
                yield {
                    HEAD: cell.delay,
                    "microbatches": microbatches,
                    "memory in microbatches": memory,
                    "memory GiB": memory * unit / GIB,
                    "schedule": made.name,
                    "ms/microbatch": takes_s * 1e3,
                    "gap_percent": gap,
                }


def fastest(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Of each delay, batch and memory the faster traversal, and what the memory saves against the least of it."""
    keys = [HEAD, "microbatches", "memory in microbatches"]
    table = (
        pl.DataFrame(rows).sort("ms/microbatch", maintain_order=True).unique(keys, keep="first", maintain_order=True)
    )
    order = pl.DataFrame({HEAD: list(dict.fromkeys(row[HEAD] for row in rows))}).with_row_index("place")
    table = table.join(order, on=HEAD).sort("place", *keys[1:]).drop("place")
    least = pl.col("ms/microbatch").first().over(HEAD, "microbatches")
    return table.with_columns(saved_percent=(1 - pl.col("ms/microbatch") / least) * 100)


def draw(table: pl.DataFrame, work_ms: float) -> plt.Figure:
    """A panel per delay: time per microbatch over memory, a line per batch, and the time that a stage's blocks take."""
    delays = table[HEAD].unique(maintain_order=True).to_list()
    looks = series([f"{n} microbatches" for n in FRONT_MICROBATCHES])
    with paper_style():
        lines = -(-len(delays) // 2)
        figure, grid = plt.subplots(
            lines, 2, figsize=(3.4, 0.9 + 1.3 * lines), sharex=True, sharey=True, squeeze=False, layout="constrained"
        )
        for axis, delay in zip(grid.flat, delays, strict=False):
            for count, (label, look) in zip(FRONT_MICROBATCHES, looks.items(), strict=True):
                own = table.filter(pl.col(HEAD) == delay, pl.col("microbatches") == count)
                axis.plot(
                    own["memory in microbatches"], own["ms/microbatch"], linestyle=look.dashes, marker=look.marker,
                    color=look.colour, mfc="none", label=label,
                )  # fmt: skip
            axis.axhline(work_ms, color=INK, linewidth=0.8, linestyle=":", label="F + D + W")
            axis.set_title(delay)
            axis.set_xticks(FRONT_MEMORY)
        for axis in list(grid.flat)[len(delays) :]:
            axis.set_axis_off()
        for axis in list(grid.flat)[max(0, len(delays) - 2) : len(delays)]:  # the lowest of its column
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("memory (microbatches)")
        grid[0][0].set_ylim(bottom=0.8 * work_ms)
        figure.supylabel("ms per microbatch (simulated)", fontsize=8)
        figure.suptitle("(T_lat, T_bw) / T_F:", fontsize=8, x=0.02, ha="left")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    told = options(__doc__)
    results = loaded(told)
    found, missing = list(table_cells(results)), unfinished(results)
    needed(pl.DataFrame([{"case": cell.case} for cell in found]), "a schedule of ours at a delay of the paper")

    def say(words: str) -> None:
        print(words, flush=True)

    changed = [changes(cell, say) for cell in found]
    rows = [insight(cell, of_cell) for cell, of_cell in zip(found, changed, strict=True)]
    notes = [EXPLAINED.format(seconds=SEARCH_S), *missing]
    write_table(
        pl.DataFrame(rows), told.out / "insight", "Table 5, what each cell stands and what would help it", notes
    )
    every = pl.DataFrame([row for of_cell in changed for row in of_cell])
    write_table(every, told.out / "insight_changes", "Table 5, one thing changed", notes)
    of_case_1 = [cell for cell in found if cell.case == 1]
    if of_case_1:
        table = fastest([row for cell in of_case_1 for row in front(cell, say)])
        title = "What more memory and a larger batch buy (not recomputed; 8 and 16 are cases 1 and 3)"
        write_table(table, told.out / "insight_front", title, missing)
        cost = of_case_1[0].problem
        write_figure(draw(table, cost.work_ns(0) / cost.microbatches / 1e6), told.out / "insight_front")


if __name__ == "__main__":
    run(main)
