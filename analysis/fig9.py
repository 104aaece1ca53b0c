"""Figure 9: Llama-3-405B on two sites, the pipeline across them against data parallelism across them.

crosspipe run experiment=fig9
python analysis/fig9.py campaigns/fig9
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import needed, one_each, options, require, run, unfinished, write_figure, write_table
from crosspipe.report.figures import paper_style, plain_log, styles
from crosspipe.report.results import Results
from crosspipe.report.wording import MISSING

REPLICAS = 64  # share the wire: the campaign holds one replica's part of its bandwidth
DRAWS = (
    "fig9.py draws one model at times counted from it (costs.tflop_per_s) on one site and on two, over links in ms and "
    "Gbit/s (network.latency_ms, network.bandwidth_gbit_per_s)"
)
WANTED = {
    "pipeline.sites": (1, 2),
    "costs.tflop_per_s": None,
    "network.latency_ms": None,
    "network.bandwidth_gbit_per_s": None,
}
CLAIM = dict.fromkeys(("at", "ratio of times", "schedule"), pl.String) | {
    "ours": pl.Float64,
    "published": pl.String,
    "ours/published": pl.Float64,
}
STATED_OF = ("cross_ud", "cross_wave")  # what the paper states is of the better of these
COMPARABLE = (
    "Both are simulated. Data parallelism across sites takes the best time on one site (the paper: ZB-V's) plus a ring "
    "all-reduce of all parameters in bf16, 2 alpha + 2 N beta, not overlapped, as the paper has it. Bandwidth is the "
    "site pair's. What the paper states is of the better of CrossUD and CrossWave."
)


def ratios(results: Results) -> pl.DataFrame:
    """Per schedule, latency and bandwidth: the pipeline across sites, data parallelism across sites, their ratio."""
    require(results, DRAWS, WANTED)
    points = results.points.filter(pl.col("predicted_makespan_ms").is_not_null())
    one_each(results, DRAWS, points, ("schedule", "sites", "delay"))
    alone = points.filter(pl.col("sites") == 1).sort("predicted_makespan_ms")
    one_site_s = needed(alone, "one site")["predicted_makespan_ms"] / 1e3
    needed(points.filter(pl.col("sites") == 2), "two sites")
    blocks = next(a.blocks for a in results.artifacts.values() if a.blocks is not None)
    parameters = sum(blocks.parameter_bytes)
    message = blocks.blocks[0][0].forward_message_bytes
    two = points.filter(pl.col("sites") == 2).select(
        "schedule",
        "latency_ms",
        bandwidth_gb_per_s=(REPLICAS * message / (pl.col("serialisation_ms") * 1e6)).round_sig_figs(4),
        messages_s=pl.col("microbatches") * pl.col("serialisation_ms") / 1e3,
        pipeline_s=pl.col("predicted_makespan_ms") / 1e3,
        gap_percent=pl.col("gap_percent"),
    )
    reduce_s = 2 * pl.col("latency_ms") / 1e3 + 2 * parameters / (pl.col("bandwidth_gb_per_s") * 1e9)
    return two.with_columns(data_parallel_s=one_site_s + reduce_s).with_columns(
        data_parallel_over_pipeline=pl.col("data_parallel_s") / pl.col("pipeline_s"),
        pipeline_over_one_site=pl.col("pipeline_s") / one_site_s,
    )


def setting(results: Results) -> tuple[str, bool]:
    """Model and rate in words, and whether they are the paper's."""
    config = next(iter(results.artifacts.values())).point.config
    model, rate = config["model"]["name"], config["costs"]["tflop_per_s"]
    return f"{model} at {rate:g} TFLOP/s a GPU", (model, rate) == ("llama3_405b", 500)


def claims(table: pl.DataFrame, of_paper: bool) -> pl.DataFrame:
    """What the paper says of this figure beside the same number here, for each schedule."""
    least = table["latency_ms"].min()
    rows = []
    for bandwidth, column, published in (
        (4, "data_parallel_over_pipeline", 3.05),
        (1024, "data_parallel_over_pipeline", None),  # parity lies past it: more than 1 here
        (64, "pipeline_over_one_site", 1.3),
    ):
        own = table.filter(pl.col("latency_ms") == least, (pl.col("bandwidth_gb_per_s") - bandwidth).abs() < 0.1)
        for row in own.iter_rows(named=True):
            stated = of_paper and row["schedule"] in STATED_OF
            rows.append(
                {
                    "at": f"{bandwidth} GB/s, {least:g} ms",
                    "ratio of times": column.replace("_", " "),
                    "schedule": row["schedule"],
                    "ours": row[column],
                    "published": _published(published) if stated else MISSING,
                    "ours/published": row[column] / published if stated and published else None,
                }
            )
    return pl.DataFrame(rows, schema=CLAIM)


def _published(value: float | None) -> str:
    return "parity lies past it" if value is None else f"{value:g}"


def parity(table: pl.DataFrame) -> str:
    """Where data parallelism becomes as fast, at the smallest latency, for each schedule."""
    least, words = table["latency_ms"].min(), []
    near = table.filter(pl.col("latency_ms") == least).sort("bandwidth_gb_per_s")
    for name in table["schedule"].unique(maintain_order=True):
        own = near.filter(pl.col("schedule") == name)
        if own.is_empty():
            continue  # not solved there
        along = list(own.select("bandwidth_gb_per_s", "data_parallel_over_pipeline").iter_rows())
        words.append(f"{name} {crossing_of_one(along)}")
    return f"Parity of the two at {least:g} ms, in GB/s of the site pair: {', '.join(words)}."


def crossing_of_one(along: Sequence[tuple[float, float]]) -> str:
    """Where the ratio first falls to 1 as bandwidth grows, between two points by their logarithms, in words."""
    if along[0][1] <= 1:
        return f"below {along[0][0]:g}"
    for (low, above), (high, below) in itertools.pairwise(along):
        if below <= 1:
            share = math.log(above) / (math.log(above) - math.log(below))
            return f"{low * (high / low) ** share:.3g}"
    return f"past {along[-1][0]:g}"


def causes(table: pl.DataFrame) -> str:
    """Why the pipeline's times are what they are, at the narrowest wire and the smallest latency of the table."""
    narrow = table.filter(
        pl.col("latency_ms") == pl.col("latency_ms").min(),
        pl.col("bandwidth_gb_per_s") == pl.col("bandwidth_gb_per_s").min(),
    )
    best = narrow.sort("pipeline_s").row(0, named=True)
    wire_s, reduce_s, gap = best["messages_s"], best["data_parallel_s"], best["gap_percent"]
    proven = "is proven optimal" if gap == 0 else f"is within {gap:.2g} % of a lower bound" if gap else "has no bound"
    return (
        f"At {best['bandwidth_gb_per_s']:g} GB/s the messages of all replicas alone give {reduce_s / wire_s:.3g} "
        f"({reduce_s:.0f} s over {wire_s:.0f} s). No pipeline is so fast: forwards come before the first message and "
        f"backwards after the last. The fastest schedule here, {best['schedule']}, takes {best['pipeline_s']:.0f} s "
        f"and {proven}."
    )


def draw(table: pl.DataFrame, of_paper: bool) -> plt.Figure:
    """The ratio over bandwidth at the smallest and largest latency, for each schedule."""
    looks = styles(table["schedule"].to_list())
    with paper_style():
        figure, axis = plt.subplots(figsize=(3.4, 2.8), layout="constrained")
        for latency, fill in ({table["latency_ms"].max(): "none"} | {table["latency_ms"].min(): "full"}).items():
            for name, look in looks.items():
                own = table.filter(pl.col("schedule") == name, pl.col("latency_ms") == latency).sort(
                    "bandwidth_gb_per_s"
                )
                axis.plot(
                    own["bandwidth_gb_per_s"], own["data_parallel_over_pipeline"], linestyle=look.dashes,
                    marker=look.marker, color=look.colour, fillstyle=fill, label=f"{name}, {latency:g} ms",
                )  # fmt: skip
        axis.axhline(1, color="black", linewidth=0.8)
        if of_paper:
            axis.plot([4], [3.05], "kx", label="published, 4 GB/s")
        plain_log(axis.xaxis, table["bandwidth_gb_per_s"])
        axis.set_xlabel("bandwidth of the site pair (GB/s)")
        axis.set_ylabel("DP over PP across sites\n(times, simulated)")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    table = ratios(results)
    words, of_paper = setting(results)
    missing = unfinished(results)
    notes = [COMPARABLE, *missing, parity(table), causes(table)]
    title = f"Figure 9, what the paper states, for {words}"
    write_table(claims(table, of_paper), told.out / "fig9_claims", title, notes)
    write_table(table, told.out / "fig9", f"Figure 9, all points (simulated), {words}", missing)
    write_figure(draw(table, of_paper), told.out / "fig9")


if __name__ == "__main__":
    run(main)
