"""Real TCP over a shaped link, nothing injected: measured against predicted iteration time, and what ours gains.

crosspipe run experiment=wan campaign_dir=campaigns/wan-20ms
python analysis/wan.py campaigns/wan-20ms campaigns/wan-40ms -o OUT

A campaign is one setting of the link, and is called by its folder's name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import polars as pl

from crosspipe.report import load_results
from crosspipe.report.export import needed, one_each, refuse, run, unfinished, write_figure, write_table
from crosspipe.report.figures import interval, paper_style, styles
from crosspipe.report.results import STATIC_SCHEDULES, Results

DRAWS = "wan.py draws runs over links that are shaped or real, one for each schedule in a campaign"

COMPARABLE = (
    "Predicted with the link as it was measured before each campaign; measured over TCP that is shaped from outside "
    "and not built from the model, medians with their 95 % interval. The paper has no such experiment: it injects."
)


def runs(campaigns: list[Results]) -> pl.DataFrame:
    """The measured points of all campaigns, each with its setting."""
    frames = []
    for results in campaigns:
        own = results.points.filter(pl.col("measured_iteration_ms").is_not_null())
        if "emulated" in own["origin"]:
            refuse(results, DRAWS, "the link is emulated")
        one_each(results, DRAWS, own, ("schedule",))
        frames.append(own.with_columns(link=pl.lit(results.campaign_dir.resolve().name)))
    points = pl.concat(frames)
    needed(points, "a measured run")
    return points


def every(points: pl.DataFrame) -> pl.DataFrame:
    """One row per setting and schedule."""
    return points.select(
        "link", "origin", "schedule", "latency_ms", serialisation_ms="serialisation_ms",
        predicted_ms="predicted_iteration_ms", measured_ms="measured_iteration_ms",
        low_ms="measured_iteration_low_ms", high_ms="measured_iteration_high_ms", error_percent="error_percent",
        **{"gap_percent": "gap_percent", "late messages": "late_messages"},
    )  # fmt: skip


def gains(points: pl.DataFrame) -> pl.DataFrame:
    """Per setting: what the fastest schedule of ours, as predicted, gains over the best static one as measured."""
    rows = []
    for (link,), own in points.group_by("link", maintain_order=True):
        statics = own.filter(pl.col("schedule").is_in(STATIC_SCHEDULES))
        ours = own.filter(~pl.col("schedule").is_in(STATIC_SCHEDULES))
        static = needed(statics.sort("measured_iteration_ms"), f"{link}, a static schedule")
        chosen = needed(ours.sort("predicted_iteration_ms"), f"{link}, a schedule of ours")
        rows.append(
            {
                "link": link,
                "latency_ms": chosen["latency_ms"],
                "a message_ms": chosen["serialisation_ms"],
                "T_F_ms": chosen["forward_reference_ms"],
                "best static": static["schedule"],
                "ours": chosen["schedule"],
                "gain, predicted_percent": (1 - chosen["predicted_iteration_ms"] / static["predicted_iteration_ms"])
                * 100,
                "gain, measured_percent": (1 - chosen["measured_iteration_ms"] / static["measured_iteration_ms"]) * 100,
                "beyond noise": _apart(chosen, static),
            }
        )
    return pl.DataFrame(rows)


def _apart(one: dict[str, float | None], other: dict[str, float | None]) -> str:
    """Whether the 95 % intervals of two medians lie apart."""
    ends = [(row["measured_iteration_low_ms"], row["measured_iteration_high_ms"]) for row in (one, other)]
    (low, high), (other_low, other_high) = ends
    if low is None or high is None or other_low is None or other_high is None:
        return "unknown"
    return "yes" if high < other_low or low > other_high else "no"


def draw(points: pl.DataFrame, table: pl.DataFrame) -> plt.Figure:
    """Above, measured against predicted iteration time; below, the gain over the best static schedule per setting."""
    looks = styles(points["schedule"].to_list())
    with paper_style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(3.4, 4.6), layout="constrained")
        times = [*points["predicted_iteration_ms"], *points["measured_iteration_ms"]]
        ends = (0.95 * min(times), 1.05 * max(times))
        upper.plot(ends, ends, color="black", linewidth=0.8)
        for name, look in looks.items():
            own = points.filter(pl.col("schedule") == name).to_dicts()
            bars = {"fmt": look.marker, "color": look.colour, "mfc": "none", "capsize": 2, "label": name}
            x, y = ([row[f"{kind}_iteration_ms"] for row in own] for kind in ("predicted", "measured"))
            upper.errorbar(x, y, yerr=interval(own), **bars)
        upper.set_xlabel("predicted iteration (ms)")
        upper.set_ylabel("measured (ms)")
        upper.set_title(" and ".join(sorted(set(points["origin"].drop_nulls()))))
        upper.legend(loc="upper left")
        places = range(table.height)
        for kind, step, colour in (("predicted", -0.2, "#6E7781"), ("measured", 0.2, "#0072B2")):
            values = table[f"gain, {kind}_percent"].to_list()
            lower.bar([i + step for i in places], values, 0.36, color=colour, label=kind)
        lower.axhline(0, color="black", linewidth=0.8)
        lower.set_xticks(list(places), table["link"].to_list(), rotation=0 if table.height < 4 else 30)
        lower.set_ylabel("gain over best static (%)")
        lower.set_xlabel("link")
        lower.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", type=Path, nargs="+", metavar="CAMPAIGN_DIR", help="one for each setting")
    parser.add_argument("-o", "--out", type=Path, help="folder to write into; default: the first campaign's analysis")
    parser.add_argument("--store", type=Path, help="where the artifacts lie now; default: as the campaigns recorded")
    told = parser.parse_args()
    out = told.out or told.campaigns[0] / "analysis"
    campaigns = [load_results(folder, told.store) for folder in told.campaigns]
    points, missing = runs(campaigns), unfinished(*campaigns)
    table = gains(points)
    write_table(table, out / "wan", "Shaped TCP, gain over the best static schedule", [COMPARABLE, *missing])
    write_table(every(points), out / "wan_runs", "Shaped TCP, every run", missing)
    write_figure(draw(points, table), out / "wan")


if __name__ == "__main__":
    run(main)
