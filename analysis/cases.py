"""What tables 5 and 6 have in common: the paper's cases, and seconds per microbatch at its own block times.

A paced run has every block and every delay `run.pace` times as long, so its times are divided by that before they stand
beside published ones. No script of its own; `table5.py` and `table6.py` use it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from crosspipe.problem import Problem
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.results import Results
from crosspipe.solver.advice import with_link

CASES = {1: "16 microbatches", 2: "32, recomputed", 3: "32, twice the memory"}
OURS = ("cross_ud_sub", "cross_ud", "cross_wave")
DRAWS = (
    "table5.py draws two sites and table6.py four, of 8 stages in all, with delays in T_F (network.delay) and "
    "recomputation told (costs.recompute)"
)
_OF_CONFIG = {(16, 8, False): 1, (32, 8, True): 2, (32, 16, False): 3}  # microbatches, memory, recomputed


def wanted(sites: int) -> dict[str, Any]:
    """What the configuration of every point must say for the table of so many sites."""
    return {"pipeline.sites": (sites,), "pipeline.stages": (8,), "network.delay": None, "costs.recompute": None}


def place(results: Results) -> pl.DataFrame:
    """All points with their case of the paper and, where solved, seconds per microbatch; other cases are left out.

    Times per microbatch are s_per_microbatch, emulated_s and bound_s; these, latency and serialisation are at the pace
    of the costs.
    """
    cases = {name: _OF_CONFIG.get(_case(a.point.config)) for name, a in results.artifacts.items()}
    paces = {name: pace(a) for name, a in results.artifacts.items()}
    slower = pl.col("point").replace_strict(paces, return_dtype=pl.Float64)
    ms = pl.col("microbatches") * slower * 1e3
    return (
        results.points.with_columns(
            case=pl.col("point").replace_strict(cases, return_dtype=pl.Int64),
            s_per_microbatch=pl.col("predicted_makespan_ms") / ms,
            emulated_s=pl.col("measured_makespan_ms") / ms,
            bound_s=pl.col("lower_bound_ms") / ms,
            latency_ms=pl.col("latency_ms") / slower,
            serialisation_ms=pl.col("serialisation_ms") / slower,
        )
        .filter(pl.col("case").is_not_null())
        .sort("case", "latency_ratio", "bandwidth_ratio", maintain_order=True)
    )


def _case(config: dict[str, Any]) -> tuple[int, float, bool]:
    pipeline = config["pipeline"]
    return pipeline["microbatches"], pipeline["memory_microbatches"], config["costs"]["recompute"]


def pace(artifacts: PointArtifacts) -> float:
    """How many times as long as its costs say the blocks of a point last."""
    if artifacts.problem is None or artifacts.blocks is None:
        return 1.0
    return artifacts.problem.forward_reference_ns() / artifacts.blocks.forward_reference_ns()


def problem_of(results: Results, point: str) -> Problem:
    """The Problem of a solved point with blocks and links that last as the costs say, whatever the run's pace."""
    artifacts = results.artifacts[point]
    assert artifacts.problem is not None
    factor = 1 / pace(artifacts)
    if factor == 1:
        return artifacts.problem
    costs = tuple(tuple(cost.scaled(factor) for cost in row) for row in artifacts.problem.costs)
    linked = with_link(artifacts.problem, latency=factor, serialisation=factor)
    return msgspec.structs.replace(linked, costs=costs)
