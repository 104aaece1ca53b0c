"""The benchmark as a user starts it: real ranks under the real mpiexec, small budgets."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from crosspipe.problem import LinkTable
from crosspipe.profile.launch import mpiexec_command
from crosspipe.profile.links import parse
from crosspipe.store import load

MODULE = "crosspipe.profile.links"


def launched(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = mpiexec_command(ranks, [MODULE, *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.serial
def test_two_ranks_over_mpi(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path / "new"), "--transports", "mpi", "--time-budget", "0.5", "--sites", "0,1"]
    done = launched(2, *arguments, "--streams", "16777216")  # two at once outlast any empty round trip
    assert done.returncode == 0, done.stderr
    table = load(tmp_path / "new" / "links.json", LinkTable)
    assert [(x.source, x.target, x.transport) for x in table.links] == [(0, 1, "mpi"), (1, 0, "mpi")]
    assert table.links[0].sizes_bytes == tuple(4**power for power in range(12))
    assert table.run_transport == "mpi"
    assert table.environment["medium_mpi"] == "shared memory: 1 pairs"
    assert "shared_memory" in [found.name for found in table.findings]
    for link in table.links:
        assert 100 < link.medians_ns[0] < 1e7  # between a tenth of a microsecond and 10 ms, whatever the machine
        assert link.medians_ns[-1] > link.medians_ns[0]
        rates = {stream.pattern: stream.bytes_per_s.median for stream in link.streams}
        assert set(rates) == ({"one_way", "both_ways"} if link.source == 0 else {"one_way"})
        assert all(1e7 < rate < 1e12 for rate in rates.values())  # inside a machine: 80 Mbit/s to 8 Tbit/s
    assert "site 0 -> 1 over mpi: alpha" in done.stdout
    assert "distrust: shared_memory: " in done.stdout


@pytest.mark.serial
def test_four_ranks_over_both_transports_keep_every_sample(tmp_path: Path) -> None:
    sizes = (1, 4096, 65536)
    arguments = ["--out", str(tmp_path), "--sizes", "65536,1,4096", "--time-budget", "1", "--sites", "0,0,1,1"]
    arguments += ["--fewest", "6", "--streams", "1048576"]
    done = launched(4, *arguments, "--strict")
    assert done.returncode == 1, done.stderr  # four ranks of two sites on one machine are a finding
    table = load(tmp_path / "links.json", LinkTable)
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    assert [(x.transport, x.source, x.target) for x in table.links] == [
        (transport, *pair) for transport in ("mpi", "gloo") for pair in pairs
    ]
    assert table.between(0, 3).transport == "gloo"
    assert {"shared_memory", "loopback"} <= {found.name for found in table.findings}
    everything = pl.read_parquet(tmp_path / "samples.parquet")
    streams = everything.filter(pl.col("pattern") != "ping_pong")
    assert set(streams["pattern"].cast(pl.String)) == {"one_way", "both_ways", "together"}
    assert set(streams["size_bytes"]) == {1048576}
    assert 4 <= streams["window"].min() <= streams["window"].max() <= 64  # a busy machine's links are longer
    ends = ("transport", "source", "target", "window")
    by_pattern = streams.with_columns(pl.col("pattern", "transport").cast(pl.String)).select("pattern", *ends).unique()
    together, alone = (
        set(by_pattern.filter(pl.col("pattern") == pattern).select(ends).rows()) for pattern in ("together", "one_way")
    )
    assert together <= alone
    crossings = {(0, 1, ((0, 2), (1, 3))), (1, 0, ((2, 0), (3, 1)))}
    assert {(x.source_site, x.target_site, x.pairs) for x in table.contention} <= crossings
    together = everything.filter(pl.col("pattern") == "together").select("source", "target").unique().rows()
    assert sorted(together) == [(0, 2), (1, 3), (2, 0), (3, 1)]
    raw = everything.filter(pl.col("pattern") == "ping_pong")
    keys = ["transport", "source", "target", "size_bytes"]
    assert raw.select(keys).unique().height == 2 * 12 * 3
    counted = raw.filter(~pl.col("warmup")).group_by(keys).agg(pl.len(), pl.col("round_trip_ns").median() / 2)
    assert counted["len"].min() >= 6
    for transport, source, target, size, _, median in counted.rows():
        link = table.between(source, target, transport)
        # on a busy machine the usual empty round trip may outlast a window: it is measured then, and no rate is stated
        assert {s.pattern for s in link.streams} <= ({"one_way", "both_ways"} if source < target else {"one_way"})
        assert link.medians_ns[sizes.index(size)] == pytest.approx(median, abs=1)
    for transport in ("mpi", "gloo"):
        assert any(link.streams for link in table.links if link.transport == transport)
    *turns, last = done.stderr.splitlines()
    assert last == "fitting"
    assert turns[0].startswith("turn 1 of 14, after 0 s: mpi ")
    assert {turn.split(": ")[1].split()[0] for turn in turns} == {"mpi", "gloo"}


@pytest.mark.serial
def test_a_world_smaller_than_the_sites_writes_nothing(tmp_path: Path) -> None:
    done = launched(2, "--out", str(tmp_path / "out"), "--sites", "0,0,1,1")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert line.startswith("profile links: MPI world size = 2: --sites is for 4")
    assert not (tmp_path / "out").exists()


@pytest.mark.serial
def test_worlds_of_one_rank_each_are_the_wrong_mpi_of_srun(tmp_path: Path) -> None:
    environ = {**os.environ, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
    command = [sys.executable, "-m", MODULE, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert done.returncode == 1
    assert "MPI world size = 1: SLURM_STEP_NUM_TASKS says 4 tasks were started" in done.stderr
    assert "srun's --mpi does not fit this MPI" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.serial
def test_one_rank_has_no_link(tmp_path: Path) -> None:
    done = launched(1, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "a link has two ends" in done.stderr


@pytest.mark.serial
def test_a_file_in_place_of_the_folder_ends_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = launched(2, "--out", str(tmp_path / "file"), "--transports", "mpi")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"profile links: --out = '{tmp_path}/file': is no folder; give a folder, it is made if missing"
    )


@pytest.mark.serial
def test_an_error_on_one_rank_ends_the_others_too(tmp_path: Path) -> None:
    (tmp_path / "links.json").mkdir()  # rank 0 alone writes, and cannot replace a folder
    arguments = ["--out", str(tmp_path), "--transports", "mpi", "--sizes", "1", "--time-budget", "0.1"]
    done = launched(3, *arguments, "--streams", "none")
    assert done.returncode != 0
    assert "profile links: rank 0: Traceback" in done.stderr
    assert "IsADirectoryError" in done.stderr


def test_options_of_a_command_line() -> None:
    options = parse(["--out", "d", "--sizes", "8,1", "--largest", "600", "--transports", "gloo", "--sites", "0,1"])
    assert options.sizes_bytes == (1, 8, 32, 128, 512)
    assert (options.transports, options.sites, options.strict) == (("gloo",), (0, 1), False)
    assert options.stream_sizes_bytes == (512,)
    assert parse(["--out", "d", "--streams", "none"]).stream_sizes_bytes == ()
    assert parse(["--out", "d", "--streams", "2048,64"]).stream_sizes_bytes == (64, 2048)
    assert parse(["--out", "d", "--largest", str(64 << 20)]).sizes_bytes[-1] == 64 << 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "0,4"], "whole numbers >= 1"),
        (["--sizes", "1,x"], "whole numbers >= 1"),
        (["--transports", "ib"], "use mpi, gloo"),
        (["--time-budget", "0"], "must be above 0"),
        (["--fewest", "5"], "6 or more"),
        (["--time-budget", "nan"], "must be above 0"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--out", "d", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
