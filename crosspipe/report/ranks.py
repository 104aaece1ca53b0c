"""What each rank did in each measured iteration: rows of the tidy iterations, from the timelines that a run left.

Timelines are the largest artifacts, so they are read by columns and summed where they lie, never built as objects.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from crosspipe.report.artifacts import PointArtifacts

_READ = ("timeline", "event", "stage", "kind", "ready_ns", "start_ns", "end_ns", "held_bytes")
_MS, _MIB = 1e6, 2**20


def rank_frame(artifacts: PointArtifacts, schedule: str) -> pl.DataFrame | None:
    """A row per measured iteration and rank; None where the run left no timelines that can be read.

    Of replicas, the first has timelines. Times as anchored where the run was paced, since the iteration's first event.
    """
    run, folder = artifacts.run, artifacts.run_dir
    if run is None or folder is None or not (folder / "timelines.parquet").exists():
        return None
    try:
        stages = _per_stage(folder / "timelines.parquet")
    except pl.exceptions.PolarsError:  # its picture on the page says what is wrong with the file
        return None
    iterations = pl.DataFrame(
        [(i, one.index, one.makespan_ns) for i, one in enumerate(run.measured)],
        schema={"timeline": pl.UInt32, "iteration": pl.Int64, "makespan_ns": pl.Int64},
        orient="row",
    )
    first = {rank.stage: (rank.rank, rank.site) for rank in reversed(run.ranks)}  # the first replica's stands last
    ranks = pl.DataFrame(
        [(stage, *first.get(stage, (stage, None))) for stage in stages["stage"].unique().sort()],
        schema={"stage": pl.UInt32, "rank": pl.Int64, "site": pl.Int64},
        orient="row",
    )
    joined = stages.join(iterations, on="timeline").join(ranks, on="stage").sort("timeline", "rank")
    return joined.select(
        pl.lit(artifacts.point.name).alias("point"), pl.lit(schedule).alias("schedule"), "iteration", "rank",
        pl.col("stage").cast(pl.Int64), "site", pl.lit(value=False).alias("warmup"),
        busy_ms=pl.col("busy_ns") / _MS, idle_ms=(pl.col("makespan_ns") - pl.col("busy_ns")) / _MS,
        first_start_ms=(pl.col("first_ns") - pl.col("zero_ns")) / _MS,
        last_end_ms=(pl.col("last_ns") - pl.col("zero_ns")) / _MS, peak_activation_mib=pl.col("peak_bytes") / _MIB,
    )  # fmt: skip


def _per_stage(path: Path) -> pl.DataFrame:
    """Per timeline and stage: busy, first, last and zero in ns, the most that was held in bytes."""
    events = pl.read_parquet(path, columns=list(_READ))
    is_block, gathers = pl.col("event") == "block", pl.col("kind") == "gather"
    blocks = events.filter(is_block).group_by("timeline", "stage").agg(
        busy_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(), first_ns=pl.col("start_ns").min(),
        last_ns=pl.col("end_ns").max(),
    )  # fmt: skip
    held = (
        events.filter(pl.col("event") == "memory")
        .group_by("timeline", "stage")
        .agg(peak_bytes=pl.col("held_bytes").max())
    )
    zero = (  # as Timeline.start_ns: a gather of parameters may come before every block
        events.filter(is_block | gathers)
        .group_by("timeline")
        .agg(zero_ns=pl.when(is_block).then("start_ns").otherwise("ready_ns").min())
    )
    return blocks.join(held, on=["timeline", "stage"], how="left").join(zero, on="timeline")
