"""What a report says of links, blocks, nodes and earlier measurements, on four nodes of two sites made by hand.

Inside a site 20 us and 8 Gbit/s, across 10 ms and 0.8 Gbit/s; node n3 is slow. In the third measurement site 0 -> 1 has
become 15 ms. Windows carry 0.72 Gbit/s alone and 0.36 together: one wire for both pairs.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import polars as pl
import pytest

from crosspipe.problem import BlockCost, BlockCosts, Finding, Link, LinkTable, Spread
from crosspipe.problem.costs import Kernel
from crosspipe.problem.links import Contention, Piece, Stream
from crosspipe.problem.nodes import NodeProfiles, costs_of_nodes
from crosspipe.report import Report, build_report
from crosspipe.report.history_figures import link_history, node_figure
from crosspipe.report.link_figures import boxes
from crosspipe.report.measurements import read_measurements
from crosspipe.report.over_time import changes_in_words
from crosspipe.report.rate_figures import fit_figure, window_figure
from crosspipe.report.results import load_results
from crosspipe.store.campaign_file import CampaignFile, CampaignPoint
from crosspipe.store.claims import my_claim
from crosspipe.store.files import save
from crosspipe.store.request import Request
from crosspipe.store.store import Store

SITES = (0, 0, 1, 1)
NODES = ("n0", "n1", "n2", "n3")
MIB = 2**20
US = 1000


def around(median: float) -> Spread:
    return Spread(median=median, low=0.99 * median, high=1.01 * median, samples=20)


def link(source: int, target: int, forth_us: int) -> Link:
    crosses = SITES[source] != SITES[target]
    alpha_us = (forth_us if SITES[source] == 0 else 10_000) if crosses else 20
    beta = 10.0 if crosses else 1.0
    sizes = (1, 65536, 4 * MIB)
    medians = [alpha_us * US + round(beta * size) for size in sizes]
    medians[1] += medians[1] // 4  # 20 % under what is measured
    rate = around(90e6)
    streams = [Stream(pattern="one_way", size_bytes=4 * MIB, window=4, bytes_per_s=rate)]
    if source < target:
        streams.append(Stream(pattern="both_ways", size_bytes=4 * MIB, window=4, bytes_per_s=around(75e6)))
    return Link(
        source=source, target=target, transport="gloo", latency_ns=alpha_us * US,
        bandwidth_bytes_per_s=round(1e9 / beta), latency=around(alpha_us * US), inverse_bandwidth=around(beta),
        sizes_bytes=sizes, medians_ns=tuple(medians), streams=tuple(streams) if crosses else (),
        pieces=(
            Piece(smallest_bytes=1, largest_bytes=8192, latency_ns=20 * US, bandwidth_bytes_per_s=10**9),
            Piece(smallest_bytes=16384, largest_bytes=4 * MIB, latency_ns=90 * US, bandwidth_bytes_per_s=2 * 10**9),
        ) if (source, target) == (0, 1) else (),
    )  # fmt: skip


def links(forth_us: int) -> LinkTable:
    pairs = ((0, 2), (1, 3))
    together = Contention(
        source_site=0, target_site=1, transport="gloo", size_bytes=4 * MIB, window=4, pairs=pairs,
        alone=(around(90e6),) * 2, together=(around(45e6),) * 2,
    )  # fmt: skip
    return LinkTable(
        links=tuple(link(a, b, forth_us) for a in range(4) for b in range(4) if a != b),
        site_of_rank=SITES, node_of_rank=NODES, contention=(together,),
        findings=(Finding(name="slow_rank", detail="gloo: rank 3 (n3)'s alpha is 2.0 times that of its peers"),),
    )  # fmt: skip


def samples() -> pl.DataFrame:
    """Ten round trips a pair: 40 us inside a site, 20 ms across, and twice that where n3 takes part."""
    rows = []
    for a in range(4):
        for b in range(4):
            if a != b:
                trip = (20_000_000 if SITES[a] != SITES[b] else 40_000) * (2 if 3 in (a, b) else 1)
                rows += [("ping_pong", "gloo", a, b, 1, i, i == 0, trip + 100 * i) for i in range(11)]
    names = ["pattern", "transport", "source", "target", "size_bytes", "index", "warmup", "round_trip_ns"]
    return pl.DataFrame(rows, schema=names, orient="row")


def costs(factor: float) -> BlockCosts:
    forward = round(1_000_000 * factor)
    cost = BlockCost(
        forward_ns=forward, input_grad_ns=forward, weight_grad_ns=forward, forward_keep_bytes=8,
        input_grad_release_bytes=8, weight_grad_release_bytes=0,
    )  # fmt: skip
    kernels = (
        Kernel(operator="aten::mm", calls=12, time_ns=2_000_000, share=0.8, flops=10**8),
        Kernel(operator="other", calls=3, time_ns=500_000, share=0.2),
    )
    return BlockCosts(
        blocks=((cost,),), layers=((4,),), origin="measured", kernels={"s0.c0": kernels},
        spreads={f"s0.c0.{kind}": around(forward) for kind in "FDW"},
    )  # fmt: skip


BY_NODE = {"n0": costs(1.0), "n1": costs(1.0), "n2": costs(1.02), "n3": costs(1.3)}


def make(store: Store, stage: str, epoch: int, files: dict[str, object]) -> str:
    request, claim = Request(stage=stage, version=1, config={"what": "all"}, epoch=epoch), my_claim()
    assert store.claim(request, claim) is None
    with store.making(request, claim) as folder:
        for name, content in files.items():
            if isinstance(content, pl.DataFrame):
                content.write_parquet(folder / name)
            else:
                save(folder / name, content)
    return request.key


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three measurements of the links and two of the blocks, the last of each in a campaign that only profiles."""
    root = tmp_path_factory.mktemp("profiled")
    store = Store(root / "store")
    for epoch, forth_us in enumerate((10_000, 10_100, 15_000), start=1):
        of_links = make(store, "links", epoch, {"links.json": links(forth_us), "samples.parquet": samples()})
    make(store, "blocks", 1, {"blocks.json": costs(0.5)})
    now = {"blocks.json": costs_of_nodes(BY_NODE), "nodes.json": NodeProfiles(by_node=BY_NODE)}
    of_blocks = make(store, "blocks", 2, now)
    labels = {"schedule": "1f1b", "model": "small", "network": "measured"}
    point = CampaignPoint(name="all", labels=labels, config={}, keys={"links": of_links, "blocks": of_blocks})
    (root / "campaign").mkdir()
    plan = CampaignFile(name="cluster", store=str(store.root), created_at_s=1.75e9, points=(point,))
    save(root / "campaign" / "campaign.json", plan)
    return root / "campaign"


@pytest.fixture(scope="module")
def report(campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report(campaign, out=tmp_path_factory.mktemp("report"))


def rows_of(report: Report, caption: str) -> list[list[str]]:
    """The cells of the one table whose caption begins so."""
    page = report.path.read_text(encoding="utf-8")
    (table,) = (t for t in re.findall(r"<table>.*?</table>", page, re.S) if f"<caption>{caption}" in t)
    rows = re.findall(r"<tr.*?</tr>", table, re.S)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)] for row in rows]


def test_from_site_to_site(report: Report) -> None:
    _, inside, forth, back, _ = rows_of(report, "From site to site")
    assert inside[:4] == ["inside site 0", "gloo", "2", "20.00 µs"]
    assert forth[3:] == ["15.00 ms", "15.00 ms", "0.800", "0.800", "0.720", "no"]
    assert back[3] == "10.00 ms"


def test_windows_and_contention(report: Report) -> None:
    _, forth, back = rows_of(report, "Windows of messages in flight")
    assert forth == ["site 0 → site 1", "gloo", "4.000 MiB", "0.720 [0.720, 0.720]", "0.600 [0.600, 0.600]"]
    assert back[-1] == "0.600 [0.600, 0.600]"  # both ways is one measurement
    _, together = rows_of(report, "Contention")
    assert together[2:] == ["2", "4.000 MiB", "1.440", "0.720", "50 %", "shared by all"]


def test_how_far_the_line_is_off_by_size(report: Report) -> None:
    head, *rows = rows_of(report, "How far alpha + beta")
    assert head[2:] == ["1 B", "64.00 KiB", "4.000 MiB"]
    assert {row[3] for row in rows} == {"−20.0 %"}
    assert {row[4] for row in rows} == {"+0.0 %"}
    _, first, second = rows_of(report, "Links that one line does not describe")
    assert (first[2], second[2:]) == ("1 B to 8.000 KiB", ["16.00 KiB to 4.000 MiB", "90.00 µs", "16.00"])


def test_nodes_and_operators(report: Report) -> None:
    _, *nodes = rows_of(report, "Nodes")
    assert [(row[0], row[1], row[2], row[4]) for row in nodes] == [
        ("n0", "3.000", "0.980", "as its peers"),  # 1 over 1.02, the median of 1, 1.02 and 1.3
        ("n1", "3.000", "0.980", "as its peers"),
        ("n2", "3.060", "1.020", "as its peers"),
        ("n3", "3.900", "1.300", "slow"),
    ]
    _, product, other = rows_of(report, "Operators of F, D and W")
    assert product == ["0, 0", "aten::mm", "12", "2.000 ms", "80.0 %", "0.100", "50.00"]
    assert other[-2:] == ["–", "–"]


def test_what_changed_and_by_how_much(report: Report) -> None:
    told = {(row[0], row[1]): row[2:] for row in rows_of(report, "Links: beyond noise, new or gone")[1:]}
    assert told["gloo site 0 → 1", "latency"] == [
        "10.10 ms [9.999 ms, 10.20 ms]", "15.00 ms [14.85 ms, 15.15 ms]", "+48.5 %", "beyond noise",
    ]  # fmt: skip
    assert len(told) == 1 + 4  # the pair of sites, and its four pairs of ranks
    blocks = {row[0]: row[2:] for row in rows_of(report, "Blocks: beyond noise, new or gone")[1:]}
    assert blocks["s0.c0.F"][2:] == ["+102.0 %", "beyond noise"]
    page = report.path.read_text(encoding="utf-8")
    # 4 pairs of sites and 12 links, alpha and time per byte of each, windows of the 10 that cross; F, D, W, kept bytes
    assert "Since the last measurement 5 of 42 quantities of links and 3 of 4 quantities of blocks changed" in page
    assert "2 measurements before" in page


def test_the_history_has_every_measurement(report: Report) -> None:
    _, *rows = rows_of(report, "History of the links between sites")
    assert [row[4] for row in rows if row[2] == "site 0 → site 1"] == ["15.00 ms", "10.10 ms", "10.00 ms"]
    _, now, before = rows_of(report, "History of the blocks")
    assert (now[2], before[2]) == ("1.010", "0.500")


def test_every_picture_is_there(report: Report) -> None:
    drawn = {path.stem for path in (report.path.parent / "figures").iterdir()}
    assert drawn == {"links", "pairs", "samples", "fit", "windows", "nodes", "link-history", "block-history"}


def test_a_slow_node_stands_out_pair_by_pair(tmp_path: Path) -> None:
    samples().write_parquet(tmp_path / "samples.parquet")
    figure = boxes(tmp_path / "samples.parquet", links(10_000))
    assert figure is not None
    labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in figure.axes]
    assert labels == [["n0 – n1", "n2 – n3"], ["n0 – n2", "n0 – n3", "n1 – n2", "n1 – n3"]]
    inside, across = ([line.get_xdata()[0] for line in axes.lines[1::2]] for axes in figure.axes)
    assert inside == pytest.approx([20.3, 40.3], rel=0.01)
    assert across == pytest.approx([10_000.3, 20_000.3, 10_000.3, 20_000.3], rel=0.01)
    assert boxes(tmp_path / "nowhere.parquet", links(10_000)) is None


def test_of_many_ranks_the_slowest_are_shown(tmp_path: Path) -> None:
    ranks = 40
    rows = [("gloo", a, b, 1, i, False, 2000 * (a + b + i)) for a in range(ranks) for b in range(ranks) if a < b
            for i in range(2)]  # fmt: skip
    names = ["transport", "source", "target", "size_bytes", "index", "warmup", "round_trip_ns"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "samples.parquet")
    table = LinkTable(links=(), site_of_rank=(0,) * ranks)
    figure = boxes(tmp_path / "samples.parquet", table)
    assert figure is not None
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [f"rank {rank}" for rank in range(39, 25, -1)]


def test_curves_hold_what_the_table_says() -> None:
    table = links(10_000)
    figure = fit_figure(table)
    assert figure is not None
    upper, lower = figure.axes
    assert list(upper.lines[0].get_ydata()) == pytest.approx([0.02, 0.1069, 4.2143], rel=1e-3)  # ms inside site 0
    assert upper.lines[1].get_ydata()[0] == pytest.approx(0.02, rel=1e-3)
    assert len(lower.lines) == 12 + 1
    assert fit_figure(LinkTable(links=(), site_of_rank=(0, 1))) is None
    windows = window_figure(table)
    assert windows is not None
    assert [list(line.get_ydata()) for line in windows.axes[0].lines] == [[0.72], [0.6], [0.72], [0.36]]


def test_pictures_of_nodes_and_history_hold_the_numbers(campaign: Path) -> None:
    measured = read_measurements(load_results(campaign))
    (profile,) = measured.links
    assert [epoch.found.links[1].latency_ns for epoch in profile.epochs] == [10_000_000, 10_100_000, 15_000_000]
    upper = link_history(profile.epochs).axes[0]
    forth = [container for container in upper.containers if container.get_label() == "site 0 → 1"]
    assert list(forth[0].lines[0].get_ydata()) == [1, 1.01, 1.5]
    (nodes,) = measured.nodes.values()
    assert [text.get_text() for text in node_figure(nodes).axes[0].get_yticklabels()] == list(NODES)


def test_a_damaged_earlier_measurement_is_left_out_and_said(campaign: Path, tmp_path: Path) -> None:
    measured = read_measurements(load_results(campaign))
    (profile,) = measured.links
    damaged = Store(load_results(campaign).store_root).directory(profile.earlier[0].reference) / "links.json"
    kept = damaged.read_bytes()
    damaged.write_bytes(b"{")
    try:
        text = build_report(campaign, out=tmp_path).path.read_text(encoding="utf-8")
    finally:
        damaged.write_bytes(kept)
    assert "Left out: " in text
    assert "1 measurement before" in text


def test_a_first_measurement_is_compared_with_nothing(shared_campaign: Path, tmp_path: Path) -> None:
    text = build_report(shared_campaign, out=tmp_path).path.read_text(encoding="utf-8")
    assert "The store holds no earlier measurement" in text
    assert changes_in_words(read_measurements(load_results(shared_campaign))) is None


def test_a_pair_without_byte_cost_has_no_rate(campaign: Path) -> None:
    free = msgspec.structs.replace(links(10_000).links[0], bandwidth_bytes_per_s=None, inverse_bandwidth=None)
    table = msgspec.structs.replace(links(10_000), links=(free,), contention=())
    assert fit_figure(table) is not None
    assert window_figure(table) is None
