"""Our ping-pong beside `mpi4py.bench pingpong` and IMB-MPI1, over the same MPI and TCP, in interleaved pairs.

They state means, so ours are averaged here too; what the profiler itself states are medians.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import polars as pl
from support.measuring_check import Check, exact, ratio
from support.options import ROOT

from crosspipe.profile.launch import find_mpiexec, mpiexec_command
from crosspipe.profile.rounds import rounds
from crosspipe.profile.samples import one_way

SIZES = (2**10, 2**14, 2**18, 2**22)
PAIRS = 45
FEWEST = 200  # round trips of ours a size: about as many as the others make
TCP = {"UCX_TLS": "tcp,self", "MPIR_CVAR_NOLOCAL": "1"}  # MPICH: not through shared memory
FETCHED = ROOT / "build" / "impi"
Times = dict[int, float]
"""Time of one message in ns, by its bytes."""


def pair_checks(quick: bool) -> Iterator[Check]:
    """Every size against every peer that is here, and the plan of who measures with whom."""
    yield exact("rounds of 16 nodes: pairs missing, doubled or disturbing one another", "pairs", _faults_of_rounds)
    sizes, pairs = (SIZES[:1], 2) if quick else (SIZES, PAIRS)
    for name, peer in _peers(quick).items():
        for size in sizes:
            key = f"TCP, {size} bytes: one way over {name}'s"
            yield ratio(key, partial(_ratios, peer, sizes, pairs, size))


def _peers(quick: bool) -> dict[str, Callable[[Sequence[int]], Times]]:
    peers = {"mpi4py.bench": _mpi4py_bench}
    if not quick and (Path(sys.prefix) / "lib" / "libmpi.so.12").exists() and _fetch_imb() is not None:
        peers["IMB-MPI1"] = _imb
    return peers


def _ratios(peer: Callable[[Sequence[int]], Times], sizes: Sequence[int], pairs: int, size: int) -> list[float]:
    return [ours[size] / theirs[size] for ours, theirs in _series(peer, tuple(sizes), pairs)]


@cache
def _series(
    peer: Callable[[Sequence[int]], Times], sizes: tuple[int, ...], pairs: int
) -> tuple[tuple[Times, Times], ...]:
    """(ours, theirs) of every pair; who goes first alternates."""
    found = []
    for number in range(pairs):
        both = [_ours, peer] if number % 2 == 0 else [peer, _ours]
        times = {measure: measure(sizes) for measure in both}
        found.append((times[_ours], times[peer]))
    return tuple(found)


def _ours(sizes: Sequence[int]) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        listed = ",".join(map(str, sizes))
        options = ["--out", folder, "--transports", "mpi", "--streams", "none", "--sizes", listed, "--time-budget", "1"]
        _run(mpiexec_command(2, ["crosspipe.profile.links", *options, "--fewest", str(FEWEST)]))
        times = one_way(pl.read_parquet(Path(folder) / "samples.parquet"))
    return {size: float(samples.mean()) for (_, source, _, size), samples in times.items() if source == 0}


def _mpi4py_bench(sizes: Sequence[int]) -> Times:
    loops = ["-l", "500", "--loop-large", "200", "--loop-huge", "20"]
    options = ["-m", str(min(sizes)), "-n", str(max(sizes)), *loops, "--no-header"]
    said = _run(mpiexec_command(2, ["mpi4py.bench", "pingpong", *options]))
    rows = (line.replace("|", " ").split() for line in said.splitlines() if "|" in line)
    return {int(row[0]): float(row[2]) * 1e9 for row in rows}


def _imb(sizes: Sequence[int]) -> Times:
    lengths = FETCHED / "lengths"
    lengths.write_text("\n".join(map(str, sizes)))
    options = ["PingPong", "-msglen", str(lengths), "-iter", "200", "-iter_policy", "off"]
    start = mpiexec_command(2, [])  # … python -m: the program takes their place
    command = [*start[: start.index(sys.executable)], str(FETCHED / "IMB-MPI1"), *options]
    said = _run(command, {"LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib")})
    rows = [row for row in map(str.split, said.splitlines()) if len(row) == 4 and row[0].isdecimal()]
    return {int(row[0]): float(row[2]) * 1e3 for row in rows}


def _fetch_imb() -> Path | None:
    """IMB-MPI1, fetched once; None where it cannot be had."""
    program = FETCHED / "IMB-MPI1"
    if program.exists():
        return program
    FETCHED.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(FETCHED), "impi-rt"]
    if subprocess.run(command, check=False).returncode:
        return None
    wheel = next(FETCHED.glob("impi_rt-*.whl"))
    with zipfile.ZipFile(wheel) as content:
        name = next(name for name in content.namelist() if name.endswith("/IMB-MPI1"))
        program.write_bytes(content.read(name))
    program.chmod(0o755)
    wheel.unlink()  # 130 MB of which this is 3
    return program


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    environ = {**os.environ, **TCP, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{find_mpiexec()}: {' '.join(command[-8:])}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _faults_of_rounds() -> float:
    plan = rounds(16)
    pairs = [pair for one in plan for pair in one]
    wanted = {(low, high) for high in range(16) for low in range(high)}
    disturbed = sum(len({rank for pair in one for rank in pair}) != 2 * len(one) for one in plan)
    return len(wanted ^ set(pairs)) + len(pairs) - len(set(pairs)) + disturbed + abs(len(plan) - 15)
