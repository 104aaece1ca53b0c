"""What scripts write of experiments that a paper simulates, run in part: beside published values, or worked by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from paper_scripts import ANALYSIS

from crosspipe.cli import main
from crosspipe.report import load_results

Simulate = Callable[..., Path]


def test_table5_stands_beside_the_published_values(simulate: Simulate) -> None:
    out = simulate("table5", "+case=batch16", "schedule=1f1b,zbh1,cross_ud_sub", "network.delay=[0,0]")
    row = pl.read_csv(out / "table5.csv").row(0, named=True)
    # ZB-H1: n(F+D+W) + (p-1)(F+D-W) = 16 * 105 + 7 * 63 ms; no order is shorter, stage 0 and 7 being as they are
    assert row["best static"] == "zbh1"
    assert row["its s/microbatch"] == pytest.approx(2.121 / 16)
    assert row["bound s/microbatch"] == pytest.approx(2.121 / 16)
    assert (row["published best"], row["its published s/microbatch"]) == ("cross_wave", 0.119)
    assert row["ours/published"] == pytest.approx(row["s/microbatch"] / 0.119)


def test_table5_names_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ANALYSIS)
    told = ("+case=batch32_recomputed", "schedule=1f1b,zbh1", "network.delay=[0,0]", "cluster=debug", "store=store")
    assert main(["run", "experiment=table5", *told, "campaign_dir=campaign"]) == 1  # not every point has a schedule
    table = importlib.import_module("table5").schedules(load_results("campaign"))
    fits, misfit = table.sort("schedule").iter_rows(named=True)
    # 1F1B: (n+p-1)(F+D+W), with D longer by F: 39 * (38 + 84 + 21) ms for 32
    assert fits["status"] == "done"
    assert fits["s/microbatch"] == pytest.approx(39 * 0.143 / 32)
    assert fits["ours/published"] == pytest.approx(39 * 0.143 / 32 / 0.174)
    # ZB-H1: n(F+D+W) + (p-1)(F+D-W)
    assert misfit["status"] == "infeasible"
    assert misfit["s/microbatch without limit"] == pytest.approx((32 * 143 + 7 * 101) / 32e3)
    # the last stage: a microbatch made whole again, and the W of seven that wait, half of one each
    assert misfit["needs GiB"] == pytest.approx((10376 + 7 * 5188) / 1024)
    assert misfit["limit GiB"] == pytest.approx((8 * 64 + 10376 - 64) / 1024)


def test_fig9_adds_the_all_reduce_of_all_parameters(simulate: Simulate) -> None:
    out = simulate("fig9", "schedule=1f1b", "network.latency_ms=4", "network.bandwidth_gbit_per_s=0.5")
    row = pl.read_csv(out / "fig9.csv").row(0, named=True)
    assert row["bandwidth_gb_per_s"] == pytest.approx(4.0)
    one_site_s = row["pipeline_s"] / row["pipeline_over_one_site"]
    # 405.85e9 parameters (the Llama 3 report), 2 bytes each, twice over 4 GB/s, and twice 4 ms
    assert row["data_parallel_s"] - one_site_s == pytest.approx(2 * 0.004 + 2 * 2 * 405.85e9 / 4e9, rel=1e-3)
    # 32 messages of 8192 x 16384 numbers of 2 bytes at 0.5 Gbit/s for one replica
    assert row["messages_s"] == pytest.approx(32 * 8192 * 16384 * 2 / 62.5e6, rel=1e-6)
    said = (out / "fig9_claims.md").read_text()
    alone = row["data_parallel_s"] / row["messages_s"]
    assert f"At 4 GB/s the messages of all replicas alone give {alone:.3g} (" in said
    assert f"1f1b, takes {row['pipeline_s']:.0f} s and is within " in said


def test_fig8_is_relative_to_zbv_without_delay(simulate: Simulate) -> None:
    out = simulate(
        "fig8", "schedule=zbv,1f1b,zbh1,cross_ud_sub", "network.latency_ratio=0,2", "network.bandwidth_ratio=0,1"
    )
    table = pl.read_csv(out / "fig8.csv")
    assert table.height == 16
    free = table.filter(pl.col("latency_ratio") == 0, pl.col("bandwidth_ratio") == 0)
    slowdown = dict(free.select("schedule", "slowdown").iter_rows())
    assert slowdown["zbv"] == 1
    # 1F1B takes (n+p-1)(F+D+W) = 11 * 30 ms
    reference = free.filter(pl.col("schedule") == "zbv")["makespan_ms"].item()
    assert slowdown["1f1b"] == pytest.approx(330 / reference)


def test_fig15_counts_the_crossings(simulate: Simulate) -> None:
    shape = ("pipeline.stages=2", "pipeline.microbatches=2", "pipeline.memory_microbatches=2", "network.delay=[1,0]")
    out = simulate("fig15", "schedule=1f1b", *shape)
    row = pl.read_csv(out / "fig15.csv").row(0, named=True)
    # worked out in conftest: 110 ms at T_F = 10 ms; F0 there and B1 back are the crossings
    assert row["makespan in T_F"] == 11
    assert row["site crossings on the critical path"] == 2
    assert row["makespan spent in crossings_percent"] == pytest.approx(100 * 20 / 110)


def test_fig14_has_a_row_a_size(simulate: Simulate) -> None:
    out = simulate("fig14", "+case=stages4", "schedule=cross_ud_sub")
    row = pl.read_csv(out / "fig14.csv").row(0, named=True)
    assert (row["stages"], row["microbatches"], row["blocks"]) == (4, 8, 96)


def test_table5_of_a_paced_campaign_is_at_the_pace_of_the_costs(
    monkeypatch: pytest.MonkeyPatch, solved: Simulate
) -> None:
    monkeypatch.syspath_prepend(ANALYSIS)
    part = ("+case=batch16", "schedule=zbh1,cross_ud_sub", "network.delay=[0,0],[0.25,0.25]", "run.pace=0.5")
    results = load_results(solved("table5", *part))
    free, near = importlib.import_module("table5").cells(results)
    # F, D, W = 38, 46, 21 ms: ZB-H1 n(F+D+W) + (p-1)(F+D-W) = 16 * 105 + 7 * 63 ms, half of it as paced
    assert free["its s/microbatch"] == pytest.approx(2.121 / 16)
    assert free["bound s/microbatch"] == pytest.approx(2.121 / 16)
    # a quarter of 38 ms each, 64 MiB in it
    assert near["latency_ms"] == pytest.approx(9.5)
    assert near["Gbit/s, n_DP=1"] == pytest.approx(2**26 * 8 / 9.5e-3 / 1e9)
    assert near["ours/published"] == pytest.approx(near["s/microbatch"] / 0.127)
    work = importlib.import_module("cases").problem_of(results, results.points["point"][0]).work_ns(0)
    assert work == 16 * 105_000_000


def test_table5_keeps_a_cell_without_a_static_schedule_and_draws_the_cases_it_has(
    monkeypatch: pytest.MonkeyPatch, solved: Simulate
) -> None:
    monkeypatch.syspath_prepend(ANALYSIS)
    table5 = importlib.import_module("table5")
    part = ("+case=batch16", "schedule=cross_ud_sub", "network.delay=[0,0],[2,2]")
    results = load_results(solved("table5", *part))
    rows = table5.cells(results)
    assert [(row["best static"], row["against_static_percent"], row["our best"]) for row in rows] == [
        (None, None, "cross_ud_sub")
    ] * 2
    (axes,) = table5.draw(results, rows).axes
    assert axes.get_title(loc="left") == "case 1: 16 microbatches"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["(0,\n0)", "(2,\n2)"]
