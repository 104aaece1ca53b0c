"""Figure 17: how exactly delays are injected. Real messages between two processes, measured against what was injected.

crosspipe run experiment=fig17
python analysis/fig17.py campaigns/fig17

Nothing here comes from the emulation's own books: what a message took is the time from the end of the block that made
it to the start of the block that waited for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import polars as pl

from crosspipe.problem import Problem
from crosspipe.report import load_results
from crosspipe.report.export import needed, options, require, run, unfinished, write_figure, write_table
from crosspipe.report.figures import COLOURS, paper_style
from crosspipe.report.results import Results
from crosspipe.schedule import Timeline
from crosspipe.schedule.timeline import TimedBlock, TimedMessage

DRAWS = "fig17.py draws runs of two stages, which wait for nothing but each other's messages"
KINDS = {"latency": "one message", "bandwidth": "messages back to back"}
COMPARABLE = (
    "The paper shows violins of the relative error for ping-pong and back-to-back messages of 4 GB between GPUs and "
    "states no numbers, so that it is small is all that compares; here messages have the sizes that runs use. A "
    "latency is judged by messages that a stage stood waiting for, a bandwidth by the time from one message to the "
    "next where they queue. Emulated: the delay is injected, what is seen includes the real transfer and the wake-up."
)


class Seen(NamedTuple):
    """One injected delay in ns, and what it took."""

    kind: str
    injected_ns: int
    took_ns: int


def seen(problem: Problem, timeline: Timeline) -> Iterator[Seen]:
    """The latencies and the queued serialisations of one iteration, as the computing stages saw them."""
    waited: dict[tuple[str, int], list[tuple[TimedMessage, TimedBlock]]] = {}
    messages = {m.message: m for m in timeline.messages}
    for stage, row in enumerate(timeline.blocks):
        free_ns = timeline.start_ns
        for timed in row:
            block = timed.block
            kind, position = ("F" if block.kind == "F" else "D"), timeline.position(stage, block.chunk)
            source = messages.get((kind, position - 1 if kind == "F" else position + 1, block.microbatch))
            if block.kind != "W" and source is not None and source.wire is not None and source.arrival_ns > free_ns:
                waited.setdefault((kind, position), []).append((source, timed))
            free_ns = timed.end_ns
    for (kind, position), pairs in waited.items():
        hop = problem.message_hop(kind, position - 1 if kind == "F" else position + 1)
        assert hop is not None
        if not hop.serialisation_ns:
            yield from (Seen("latency", hop.latency_ns, block.start_ns - m.ready_ns) for m, block in pairs)
        for (earlier, before), (later, after) in pairwise(pairs):
            if hop.serialisation_ns and later.start_ns == earlier.served_ns:
                yield Seen("bandwidth", hop.serialisation_ns, after.start_ns - before.start_ns)


def errors(results: Results) -> pl.DataFrame:
    """One row per delay that was seen: its point's message size, kind, the delay, the error of what it took."""
    rows: list[dict[str, Any]] = []
    for artifacts in results.artifacts.values():
        if artifacts.problem is None or artifacts.run is None:
            continue
        size = artifacts.problem.costs[0][0].forward_message_bytes
        for timeline in artifacts.timelines():
            for kind, injected_ns, took_ns in seen(artifacts.problem, timeline):
                rows.append(
                    {
                        "kind": kind,
                        "message_kib": size / 2**10,
                        "injected_ms": injected_ns / 1e6,
                        "error_us": (took_ns - injected_ns) / 1e3,
                        "error_percent": (took_ns / injected_ns - 1) * 100,
                    }
                )
    return pl.DataFrame(rows)


def summary(rows: pl.DataFrame) -> pl.DataFrame:
    """Percentiles of the error per kind, message size and delay."""
    return (
        rows.group_by("kind", "message_kib", pl.col("injected_ms").round(3))
        .agg(
            delays=pl.len(),
            **{f"error p{q}_us": pl.col("error_us").quantile(q / 100) for q in (5, 50, 95)},
            **{f"error p{q}_percent": pl.col("error_percent").quantile(q / 100) for q in (50, 95)},
        )
        .sort("kind", "message_kib", "injected_ms", descending=[True, False, False])
    )


def draw(rows: pl.DataFrame) -> plt.Figure:
    """Violins of the relative error, one per delay and message size; 98 % of the delays, the rest is in the table."""
    sizes = sorted(set(rows["message_kib"]))
    colours = dict(zip(sizes, COLOURS, strict=False))
    with paper_style():
        figure, axes = plt.subplots(2, 1, figsize=(3.4, 3.8), layout="constrained")
        for axis, (kind, words) in zip(axes, KINDS.items(), strict=True):
            own = rows.filter(pl.col("kind") == kind).with_columns(pl.col("injected_ms").round(3)).sort("injected_ms")
            groups = list(own.group_by("injected_ms", "message_kib", maintain_order=True))
            for place, ((_, size), group) in enumerate(groups):
                low, high = (group["error_percent"].quantile(q) for q in (0.01, 0.99))
                values = group["error_percent"].clip(low, high).to_numpy()
                parts = axis.violinplot([values], [place], widths=0.8, showmedians=True, showextrema=False)
                for body in parts["bodies"]:
                    body.set(facecolor=colours[size], edgecolor=colours[size], alpha=0.5)
                parts["cmedians"].set(color=colours[size], linewidth=1.5)
            axis.axhline(0, color="black", linewidth=0.8)
            turned = 0 if len(groups) < 8 else 60
            axis.set_xticks(range(len(groups)), [f"{ms:.3g}" for (ms, _), _ in groups], rotation=turned)
            axis.set_ylabel("error (%)")
            axis.set_title(words)
            axis.set_xlabel("injected latency (ms)" if kind == "latency" else "injected time per message (ms)")
        handles = [plt.Line2D([], [], color=colour, linewidth=4, label=f"{size:g}") for size, colour in colours.items()]
        figure.legend(handles=handles, title="message (KiB)", loc="outside lower center", ncols=len(sizes))
    return figure


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    require(results, DRAWS, {"pipeline.stages": (2,)})
    rows = errors(results)
    needed(rows, "a run with messages that were waited for")
    title = "Figure 17, time beyond the injected delay (5th, 50th and 95th percentile)"
    write_table(summary(rows), told.out / "fig17", title, [COMPARABLE, *unfinished(results)])
    write_figure(draw(rows), told.out / "fig17")


if __name__ == "__main__":
    run(main)
