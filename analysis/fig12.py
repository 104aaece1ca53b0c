"""Figure 12: the same nodes and the same batch, as more pipeline stages or as more replicas, for two kinds of links.

crosspipe run experiment=fig12
python analysis/fig12.py campaigns/fig12
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import needed, one_each, options, require, run, unfinished, write_figure, write_table
from crosspipe.report.figures import paper_style, styles
from crosspipe.report.results import STATIC_SCHEDULES, Results
from crosspipe.report.wording import joined

DRAWS = (
    "fig12.py draws splits of the same nodes on two sites, over links in ms and Gbit/s (network.latency_ms, "
    "network.bandwidth_gbit_per_s), with a memory in MiB (pipeline.memory_mib)"
)
WANTED = {
    "pipeline.sites": (2,),
    "pipeline.memory_mib": None,
    "network.latency_ms": None,
    "network.bandwidth_gbit_per_s": None,
}
LINK = "(T_lat, T_bw)/T_F"
PUBLISHED = {"(1, 0.25)": "far and wide (1, 0.25)", "(0.125, 2)": "near and narrow (0.125, 2)"}
COMPARABLE = (
    "The paper draws this figure without numbers and says that efficiency stays about the same whatever the split: "
    "what compares is the last column, 1 for no difference at all. Ours is simulated at times counted from the model; "
    "a link stays the same link in every split, its ratios are those of the fewest stages. Gradient reductions are "
    "inside a site and free here."
)


def solved(results: Results) -> pl.DataFrame:
    """The solved points with replicas, static memory, and the link in ratios of T_F at the fewest stages."""
    require(results, DRAWS, WANTED)
    of_config = {}
    for name, artifacts in results.artifacts.items():
        label = str(artifacts.point.labels.get("case", ""))
        _, _, static = label.partition("_static")
        of_config[name] = (artifacts.point.config["pipeline"]["replicas"], int(static) if static else None)
    points = results.points.filter(pl.col("predicted_makespan_ms").is_not_null()).with_columns(
        replicas=pl.col("point").replace_strict({k: v[0] for k, v in of_config.items()}, return_dtype=pl.Int64),
        static_percent=pl.col("point").replace_strict({k: v[1] for k, v in of_config.items()}, return_dtype=pl.Int64),
    )
    needed(points, "a schedule")
    one_each(results, DRAWS, points, ("stages", "replicas", "static_percent", "schedule", "delay"))
    few = points.filter(pl.col("stages") == points["stages"].min()).unique("delay", keep="first", maintain_order=True)
    links = {
        row["delay"]: f"({row['latency_ratio']:.3g}, {row['bandwidth_ratio']:.3g})" for row in few.iter_rows(named=True)
    }
    known = pl.col("delay").replace_strict(links, default=pl.col("delay"), return_dtype=pl.String)
    return points.with_columns(link=known).sort("delay", "static_percent", "stages", maintain_order=True)


def comparable(points: pl.DataFrame) -> str:
    """What compares, and which of these links the paper draws."""
    drawn = [words for link, words in PUBLISHED.items() if link in points["link"]]
    return f"{COMPARABLE} Of these links the paper draws {joined(drawn)}." if drawn else COMPARABLE


def every(points: pl.DataFrame) -> pl.DataFrame:
    """One row per link, memory, split and schedule."""
    return points.select(
        "link", "static_percent", "stages", "replicas", "microbatches", "schedule", "latency_ms", "serialisation_ms",
        iteration_s=pl.col("predicted_makespan_ms") / 1e3, emulated_s=pl.col("measured_makespan_ms") / 1e3,
        gap_percent=pl.col("gap_percent"), bubble_percent=100 * pl.col("predicted_bubble_ratio"),
    )  # fmt: skip


def splits(points: pl.DataFrame) -> pl.DataFrame:
    """Per link and memory: the best schedule of each split, and how far the splits lie apart."""
    rows = []
    for (link, static), own in points.group_by("link", "static_percent", maintain_order=True):
        row = {LINK: link, "static memory_percent": static}
        best, fixed = [], []
        for (stages, replicas), split in own.group_by("stages", "replicas", maintain_order=True):
            ours = split.filter(~pl.col("schedule").is_in(STATIC_SCHEDULES)).sort("predicted_makespan_ms")
            first = needed(ours, f"{link}, {stages} stages, a schedule of ours")
            best.append(first["predicted_makespan_ms"] / 1e3)
            row |= {f"PP {stages} x DP {replicas}": first["schedule"], f"PP {stages}, s": best[-1]}
            static_ones = split.filter(pl.col("schedule").is_in(STATIC_SCHEDULES))["predicted_makespan_ms"]
            fixed += [] if static_ones.is_empty() else [static_ones.min() / 1e3]
        row |= {"slowest/fastest split, static": max(fixed) / min(fixed) if fixed else None}
        rows.append(row | {"slowest/fastest split, ours": max(best) / min(best)})
    return pl.DataFrame(rows, infer_schema_length=None)


def draw(points: pl.DataFrame) -> plt.Figure:
    """Iteration time over the number of stages: a row a link, a column a memory."""
    looks = styles(points["schedule"].to_list())
    links, memories = (list(dict.fromkeys(points[name])) for name in ("link", "static_percent"))
    ran = points["measured_makespan_ms"].is_not_null().any()
    with paper_style():
        figure, grid = plt.subplots(
            len(links), len(memories), figsize=(3.4, 0.9 + 1.25 * len(links)), sharex=True, sharey="row",
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for link, axes in zip(links, grid, strict=True):
            for static, axis in zip(memories, axes, strict=True):
                for name, look in looks.items():
                    own = points.filter(
                        pl.col("link") == link, pl.col("static_percent").eq_missing(static), pl.col("schedule") == name
                    ).sort("stages")
                    column = pl.col("measured_makespan_ms" if ran else "predicted_makespan_ms") / 1e3
                    line = {"color": look.colour, "linestyle": look.dashes, "marker": look.marker, "mfc": "none"}
                    axis.plot(own["stages"], own.select(column).to_series(), label=name, **line)
                axis.set_xscale("log", base=2)
                axis.set_xticks(stages := sorted(set(points["stages"])), [str(n) for n in stages])
                axis.minorticks_off()
                axis.set_title(link if static is None else f"{link}, {static} %", fontsize=7)
            axes[0].set_ylabel("iteration (s)")
        for axis in grid[-1]:
            axis.set_xlabel("pipeline stages")
        above = f"{'emulated, paced' if ran else 'simulated'}; titles: {LINK} on {min(stages)} stages, static memory"
        figure.suptitle(above, fontsize=7)
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    told = options(__doc__)
    results = load_results(told.campaign, told.store)
    points, missing = solved(results), unfinished(results)
    title = "Figure 12, the best schedule of each split of the same nodes"
    write_table(splits(points), told.out / "fig12", title, [comparable(points), *missing])
    write_table(every(points), told.out / "fig12_schedules", "Figure 12, every schedule", missing)
    write_figure(draw(points), told.out / "fig12")


if __name__ == "__main__":
    run(main)
