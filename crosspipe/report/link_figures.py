"""Figures of the measured links: a heat map of every pair of ranks, and the distribution of the samples behind it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from crosspipe.problem import LinkTable
from crosspipe.report import prose
from crosspipe.report.figures import COLOURS, Picture, paper_style, to_svg
from crosspipe.report.results import Results
from crosspipe.store.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELLED_RANKS = 8  # more, and numbers in the cells no longer fit
_LINES = ("-", "--", ":", "-.")


def link_pictures(results: Results) -> list[Picture]:
    """For every link profile of the campaign its heat map and, where the samples are there, their distribution."""
    profiles = {a.point.keys["links"]: a.links for a in results.artifacts.values() if a.links is not None}
    drawn = []
    for index, (key, links) in enumerate(profiles.items()):
        place = f", artifact links/{key[:12]}" if len(profiles) > 1 else ""
        transport = links.run_transport
        drawn.append((f"links{index or ''}", f"Links over {transport}{place}", prose.HEAT_CAPTION, heat_map(links)))
        samples = Store(results.store_root).directory(f"links/{key}") / "samples.parquet"
        drawn.append(
            (f"samples{index or ''}", f"Samples behind the latencies{place}", prose.ECDF_CAPTION, ecdf(samples, links))
        )
    return [Picture(name, title, text, to_svg(figure)) for name, title, text, figure in drawn if figure is not None]


def heat_map(links: LinkTable) -> Figure | None:
    """Latency and bandwidth from every rank to every other, over the run's transport; None where none was measured."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    own = [link for link in links.links if link.transport == links.run_transport]
    if not own:
        return None
    ranks = len(links.site_of_rank)
    quantities = {
        "latency (µs)": {(x.source, x.target): x.latency_ns / 1e3 for x in own},
        "bandwidth (Gbit/s)": {
            (x.source, x.target): x.bandwidth_bytes_per_s * 8 / 1e9 for x in own if x.bandwidth_bytes_per_s is not None
        },
    }
    with paper_style():
        figure = Figure(figsize=(3.4, 2.2), layout="constrained")
        for axes, (label, values) in zip(figure.subplots(1, 2, sharey=True), quantities.items(), strict=True):
            cells = [[values.get((i, j), math.nan) for j in range(ranks)] for i in range(ranks)]
            known = [x for x in values.values() if x > 0]
            norm = LogNorm(min(known), max(known)) if known and min(known) < max(known) else None
            shown = axes.imshow(cells, cmap="cividis", norm=norm)
            figure.colorbar(shown, ax=axes, location="bottom", label=label)
            for border in range(1, ranks):
                if links.site_of_rank[border] != links.site_of_rank[border - 1]:
                    axes.axhline(border - 0.5, color="white", linewidth=1.2)
                    axes.axvline(border - 0.5, color="white", linewidth=1.2)
            for (i, j), value in values.items() if ranks <= LABELLED_RANKS else ():
                red, green, blue, _ = shown.cmap(shown.norm(value))
                ink = "#fefefe" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
                axes.text(j, i, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=6)
            axes.grid(visible=False)
            axes.set_xticks(range(0, ranks, -(-ranks // 8)))
            axes.set_yticks(range(0, ranks, -(-ranks // 8)))
            axes.set_xlabel("to rank")
        figure.axes[0].set_ylabel("from rank")
    return figure


def ecdf(path: Path, links: LinkTable) -> Figure | None:
    """The empirical distribution of half the round trip of the smallest message, inside and across sites, for every
    transport; None where the samples are not there."""
    import polars as pl
    from matplotlib.figure import Figure

    if not path.exists():
        return None
    samples = pl.read_parquet(path).filter(~pl.col("warmup"))
    if "pattern" in samples.columns:
        samples = samples.filter(pl.col("pattern").cast(pl.String) == "ping_pong")
    samples = samples.filter(pl.col("size_bytes") == pl.col("size_bytes").min().over("transport"))
    if samples.is_empty():
        return None
    site = pl.Series(links.site_of_rank)
    across = [site[s] != site[t] for s, t in samples.select("source", "target").iter_rows()]
    samples = samples.with_columns(across=pl.Series(across), one_way_us=pl.col("round_trip_ns") / 2e3)
    with paper_style():
        figure = Figure(figsize=(3.4, 2.6), layout="constrained")
        axes = figure.add_subplot()
        groups = samples.partition_by("transport", "across", as_dict=True, maintain_order=True)
        for index, ((transport, crosses), own) in enumerate(groups.items()):
            ordered = own["one_way_us"].sort().to_list()
            shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
            label = f"{transport}, {'across' if crosses else 'inside'} sites ({len(ordered)})"
            axes.step(ordered, shares, where="post", label=label, linestyle=_LINES[index % 4], color=COLOURS[index % 6])
        axes.set_xscale("log")
        axes.set_xlabel("half the round trip of the smallest message (µs)")
        axes.set_ylabel("share of samples")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
