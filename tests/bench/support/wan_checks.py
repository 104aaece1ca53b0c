"""The link benchmark on a shaped link, beside what a plain socket shows there. Needs root, TUN and `ip`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from support.link_pairs import TCP
from support.measuring_check import Check, near
from support.options import ROOT

from crosspipe.problem import LinkTable
from crosspipe.profile.launch import mpiexec_command
from crosspipe.store import load

WAN = ROOT / "slurm" / "devcluster" / "wan" / "wan.py"
NAME, DELAY_MS, RATE_MBIT = "crosspipe-bench", 20.0, 100.0
TRIES = 7
STREAM_BYTES = 2**20
HERE = Path(__file__).parent


def wan_checks(quick: bool) -> Iterator[Check]:
    """Rate and alpha over both transports; none where no such link can be made, and none in a quick run."""
    if quick or os.geteuid() != 0 or not Path("/dev/net/tun").exists() or shutil.which("ip") is None:
        return
    allowed_ms = max(0.03 * DELAY_MS, 0.5)
    link = f"shaped link, {DELAY_MS:g} ms and {RATE_MBIT:g} Mbit/s"
    for transport in ("mpi", "gloo"):
        yield near(f"{link}: window over {transport} over a socket's goodput", partial(_rates, transport))
        key = f"{link}: alpha over {transport} less half a socket's round trip"
        yield Check(
            key, "ms", f"within max(3 %, 0.5 ms) = {allowed_ms:g} ms", allowed_ms, partial(_latencies, transport)
        )


def _rates(transport: str) -> list[float]:
    found = []
    for socket, table in _tries():
        (stream,) = [s for s in table.between(0, 1, transport).streams if s.pattern == "one_way"]
        found.append(stream.bytes_per_s.median / socket["bytes_per_s"])
    return found


def _latencies(transport: str) -> list[float]:
    return [
        table.between(0, 1, transport).latency_ns / 1e6 - socket["round_trip_s"] * 500 for socket, table in _tries()
    ]


@cache
def _tries() -> tuple[tuple[dict[str, float], LinkTable], ...]:
    """What the socket and the benchmark measured, again and again in turn."""
    with _shaped():
        return tuple((_socket(), _benchmark()) for _ in range(TRIES))


@contextlib.contextmanager
def _shaped() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        where = ["--name", NAME, "--directory", f"{folder}/wan"]
        shape = ["--delay-ms", f"{DELAY_MS}", "--rate-mbit", f"{RATE_MBIT}"]
        subprocess.run([sys.executable, str(WAN), "up", *where, *shape], check=True, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            subprocess.run([sys.executable, str(WAN), "down", *where], check=True)


def _inside(site: int) -> list[str]:
    return ["ip", "netns", "exec", f"{NAME}-dc{site}"]  # not nsenter: UCX looks for devices in /sys


def _socket() -> dict[str, float]:
    program, host = str(HERE / "plain_socket.py"), "10.78.1.1"
    with subprocess.Popen([*_inside(1), sys.executable, program, "serve", host]) as server:
        try:
            command = [*_inside(0), sys.executable, program, "measure", host]
            said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        finally:
            server.terminate()
    return json.loads(said)


def _benchmark() -> LinkTable:
    environ = {**os.environ, **TCP, "GLOO_SOCKET_IFNAME": "wan", "UCX_NET_DEVICES": "wan"}
    with tempfile.TemporaryDirectory() as folder:
        sizes = ["--sizes", f"1,64,1024,65536,{STREAM_BYTES}", "--streams", f"{STREAM_BYTES}", "--time-budget", "8"]
        start = mpiexec_command(1, ["crosspipe.profile.links", "--out", folder, "--sites", "0,1", *sizes])
        cut = start.index("-n")
        rank = start[cut + 2 :]
        command = [*start[:cut], "-n", "1", *_inside(0), *rank, ":", "-n", "1", *_inside(1), *rank]
        subprocess.run(command, env=environ, capture_output=True, timeout=300, check=True)
        return load(Path(folder) / "links.json", LinkTable)
