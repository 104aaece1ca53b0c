"""Figures of the measured links: a heat map of every pair of ranks, and the samples behind it, by pair and pooled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from crosspipe.problem import LinkTable
from crosspipe.report import measured_prose as prose
from crosspipe.report.figures import COLOURS, INK, Picture, paper_style, to_svg
from crosspipe.report.measurements import Profile
from crosspipe.report.rate_figures import fit_figure, readable, window_figure

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

LABELLED_RANKS = 8  # more, and numbers in the cells no longer fit
MOST_ROWS = 28  # of boxes: more pairs, and a box stands for all pairs of a rank
_LINES = ("-", "--", ":", "-.")


def link_pictures(profiles: Iterable[Profile[LinkTable]]) -> list[Picture]:
    """The pictures of every link profile; those without data are left out."""
    profiles, drawn = list(profiles), []
    for index, profile in enumerate(profiles):
        links, samples = profile.now.found, profile.folder / "samples.parquet"
        place, number = (f", artifact {profile.now.short}" if len(profiles) > 1 else ""), index or ""
        drawn += [
            (f"links{number}", f"Links over {links.run_transport}{place}", prose.HEAT_CAPTION, heat_map(links)),
            (f"pairs{number}", f"Latency pair by pair{place}", prose.BOX_CAPTION, boxes(samples, links)),
            (f"samples{number}", f"Samples behind the latencies{place}", prose.ECDF_CAPTION, ecdf(samples, links)),
            (f"fit{number}", f"Time by message size{place}", prose.FIT_CAPTION, fit_figure(links)),
            (f"windows{number}", f"Rates of windows{place}", prose.RATE_CAPTION, window_figure(links)),
        ]
    return [Picture(name, title, text, to_svg(figure)) for name, title, text, figure in drawn if figure is not None]


def heat_map(links: LinkTable) -> Figure | None:
    """Latency and bandwidth from every rank to every other, over the run's transport; None where none was measured."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    own = [link for link in links.links if link.transport == links.run_transport]
    if not own:
        return None
    ranks = len(links.site_of_rank)
    unit, scale = ("ms", 1e6) if max(x.latency_ns for x in own) >= 1e6 else ("µs", 1e3)
    quantities = {
        f"latency ({unit})": {(x.source, x.target): x.latency_ns / scale for x in own},
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
            ends = sorted({min(known), max(known)}) if known else []
            bar = figure.colorbar(shown, ax=axes, location="bottom", label=label, ticks=ends)
            bar.set_ticks(ends, labels=[f"{value:.3g}" for value in ends])
            bar.minorticks_off()
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


def boxes(path: Path, links: LinkTable) -> Figure | None:
    """A box for each pair of ranks (of many ranks: for each rank), inside sites and across, over the run's transport;
    None where the samples are not there."""
    from matplotlib.figure import Figure

    samples = smallest_messages(path, links)
    if samples is None:
        return None
    rows = _rows(samples, links)
    if not rows:
        return None
    kinds = {crosses: [row for row in rows if row[1] == crosses] for crosses in dict.fromkeys(row[1] for row in rows)}
    with paper_style():
        figure = Figure(figsize=(3.4, 0.5 + 0.55 * len(kinds) + 0.16 * len(rows)), layout="constrained")
        heights = [len(own) + 1 for own in kinds.values()]
        panels = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (crosses, own) in zip(panels, kinds.items(), strict=True):
            colour = COLOURS[1] if crosses else COLOURS[0]
            for place, (_, _, times) in enumerate(own):
                least, low, middle, high, most = (times.quantile(q, "linear") for q in (0.01, 0.25, 0.5, 0.75, 0.99))
                axes.plot([least, most], [place, place], color=colour, linewidth=0.9)
                axes.barh(place, high - low, 0.6, low, color=colour, alpha=0.45)
                axes.plot([middle, middle], [place - 0.36, place + 0.36], color=INK, linewidth=1.4)
            axes.set_yticks(range(len(own)), [label for label, _, _ in own])
            axes.set_ylim(len(own) - 0.4, -0.6)
            axes.grid(visible=False, axis="y")
            axes.set_title("across sites" if crosses else "inside sites")
            readable(axes.xaxis)
        figure.supxlabel("half the round trip of the smallest message (µs)", fontsize=8)
    return figure


def _rows(samples: pl.DataFrame, links: LinkTable) -> list[tuple[str, bool, pl.Series]]:
    """(label, across sites, times in µs) of every box: by pair or, of many, the slowest ranks; inside sites first."""
    import polars as pl

    own = samples.filter(pl.col("transport").cast(pl.String) == links.run_transport)
    ends = pl.min_horizontal("source", "target"), pl.max_horizontal("source", "target")
    by_pair = own.with_columns(one=ends[0], other=ends[1]).sort("across", "one", "other")
    groups = by_pair.partition_by("across", "one", "other", as_dict=True, maintain_order=True)
    if len(groups) <= MOST_ROWS:
        return [
            (f"{_called(links, one)} – {_called(links, other)}", crosses, group["one_way_us"])
            for (crosses, one, other), group in groups.items()
        ]
    by_rank = pl.concat([own.with_columns(rank=pl.col(end)) for end in ("source", "target")])
    ranks = by_rank.sort("across", "rank").partition_by("across", "rank", as_dict=True, maintain_order=True)
    rows = [(_called(links, rank), crosses, group["one_way_us"]) for (crosses, rank), group in ranks.items()]
    shown = []
    for crosses in dict.fromkeys(row[1] for row in rows):
        alike = [row for row in rows if row[1] == crosses]
        slowest = sorted(alike, key=lambda row: -(row[2].median() or 0))[: MOST_ROWS // 2]
        shown += [row for row in alike if row in slowest] if len(alike) <= MOST_ROWS // 2 else slowest
    return shown


def _called(links: LinkTable, rank: int) -> str:
    """A rank by its node, and by its number where that is not enough."""
    if not links.node_of_rank:
        return f"rank {rank}"
    node = links.node_of_rank[rank]
    return node if links.node_of_rank.count(node) == 1 else f"{node} ({rank})"


def ecdf(path: Path, links: LinkTable) -> Figure | None:
    """The empirical distribution of half the round trip of the smallest message, inside and across sites, for every
    transport; None where the samples are not there."""
    from matplotlib.figure import Figure

    samples = smallest_messages(path, links)
    if samples is None:
        return None
    with paper_style():
        figure = Figure(figsize=(3.4, 2.6), layout="constrained")
        axes = figure.add_subplot()
        groups = samples.partition_by("transport", "across", as_dict=True, maintain_order=True)
        for index, ((transport, crosses), own) in enumerate(groups.items()):
            ordered = own["one_way_us"].sort().to_list()
            shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
            label = f"{transport}, {'across' if crosses else 'inside'} sites ({len(ordered)})"
            axes.step(ordered, shares, where="post", label=label, linestyle=_LINES[index % 4], color=COLOURS[index % 6])
        readable(axes.xaxis)
        axes.set_xlabel("half the round trip of the smallest message (µs)")
        axes.set_ylabel("share of samples")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def smallest_messages(path: Path, links: LinkTable) -> pl.DataFrame | None:
    """Every counted ping-pong of the smallest message of its transport, `one_way_us` and whether it went `across`
    sites; None where there are none."""
    import polars as pl

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
    return samples.with_columns(across=pl.Series(across), one_way_us=pl.col("round_trip_ns") / 2e3)
