"""The wide-area link between namespaces does to plain TCP what it was told: delay, rate, loss, a rate that changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

WAN = Path(__file__).parents[2] / "slurm" / "devcluster" / "wan" / "wan.py"
PROBE = Path(__file__).with_name("socket_probe.py")


class Wan:
    """A link of its own, named after this process."""

    def __init__(self, directory: Path) -> None:
        self.name = f"cpt{os.getpid()}"
        self.directory = directory

    def do(self, verb: str, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(WAN), verb, "--directory", str(self.directory), "--name", self.name, *options]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)

    def inside(self, site: str, *command: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}-{site}", *command]

    def measure(self, seconds: float) -> dict[str, Any]:
        """What `socket_probe.py` sees from dc0 to dc1; of round trips the fastest, since other tests run beside."""
        serve = self.inside("dc1", sys.executable, str(PROBE), "serve", "5000")
        with subprocess.Popen(serve, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                ask = self.inside("dc0", sys.executable, str(PROBE), "ask", "10.78.1.11", "5000", str(seconds))
                return json.loads(subprocess.run(ask, capture_output=True, check=True, timeout=60).stdout)
            finally:
                server.kill()

    def carried(self) -> dict[str, float]:
        return json.loads((self.directory / "from-dc0.json").read_text())

    def relays(self) -> list[int]:
        return [int(file.read_text()) for file in self.directory.glob("*.pid")]


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Callable[..., AbstractContextManager[Wan]]]:
    @contextmanager
    def make(*options: str) -> Iterator[Wan]:
        wan = Wan(tmp_path / "wan")
        wan.do("up", *options)
        try:
            yield wan
        finally:
            wan.do("down")
        assert not wan.directory.exists()
        assert not list(Path("/run/netns").glob(f"{wan.name}-*"))

    return make


def test_a_transfer_sees_delay_rate_and_congestion_control(link):
    """Round trip 2 x 20 ms; 50 Mbit/s of which 40 of 1500 bytes a packet are TCP's and IP's headers (97 % is data)."""
    with link("--delay-ms", "20", "--rate-mbit", "50", "--congestion", "reno") as wan:
        seen = wan.measure(3)
        assert seen["congestion"] == "reno"
        assert 40 <= seen["round_trip_ms"] <= 50
        assert 35 <= seen["mbit_per_s"] <= 50 * 1460 / 1500
        assert "congestion=reno" in wan.do("show").stdout


def test_the_rate_changes_under_way(link):
    with link("--delay-ms", "2", "--rate-mbit", "80") as wan:
        assert wan.measure(2)["mbit_per_s"] > 45
        wan.do("set", "--rate-mbit", "20")
        assert 10 < wan.measure(2)["mbit_per_s"] <= 20
        assert "delay_ms=2.0" in wan.do("show").stdout


def test_packets_are_lost_at_the_rate_set(link):
    with link("--delay-ms", "1", "--loss-percent", "5", "--congestion", "bbr") as wan:
        wan.measure(2)
        time.sleep(1.2)  # counts are written once a second
        carried = wan.carried()
        assert carried["packets"] > 1000
        assert 0.03 < carried["lost"] / carried["packets"] < 0.07


def test_a_stopped_relay_is_a_partition_that_heals(link):
    with link("--delay-ms", "1") as wan:
        for pid in wan.relays():
            os.kill(pid, signal.SIGSTOP)
        ask = wan.inside("dc0", sys.executable, "-c", "import socket; socket.create_connection(('10.78.1.1', 9), 1)")
        assert b"timed out" in subprocess.run(ask, capture_output=True, timeout=30).stderr
        for pid in wan.relays():
            os.kill(pid, signal.SIGCONT)
        assert wan.measure(0.2)["round_trip_ms"] > 2


@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [("--congestion", "vegas2", "congestion=vegas2: this kernel has"), ("--jitter-ms", "21", "use at most the delay"),
     ("--loss-percent", "100", "use 0 to below 100"), ("--rate-swing", "1", "use 0 to below 1")],
)  # fmt: skip
def test_what_no_link_can_be_is_refused(tmp_path, option, value, wrong):
    wan = Wan(tmp_path / "wan")
    refused = wan.do("up", option, value, check=False)
    assert refused.returncode == 1
    assert wrong in refused.stderr
    assert not wan.directory.exists()


def test_the_rate_swings_as_a_sine(monkeypatch):
    monkeypatch.syspath_prepend(str(WAN.parent))
    from link import Link

    link = Link(rate_mbit=100, rate_swing=0.3, rate_period_s=8)
    assert [round(link.bytes_per_s(t) * 8e-6, 6) for t in (0, 2, 4, 6)] == [100, 130, 100, 70]


def test_slurm_runs_across_it(start_cluster):
    """Nodes of two sites are apart by the delay, of one site they are not."""
    with start_cluster("--wan", "--delay-ms 15") as cluster:

        def trip(*nodes: str) -> float:
            said = cluster.script(
                "exec", "--", "srun", "--mpi=pmi2", "-n2", "-N2", "-w", ",".join(nodes),
                "env", "UCX_TLS=tcp,self", sys.executable, "-m", "mpi4py.bench",
                "pingpong", "--max-size=1", "--skip=3", "--loop=9",
            ).stdout  # fmt: skip
            return float(said.split("|")[-1].split()[0]) * 1e3

        assert 15 < trip("dc0n0", "dc1n0") < 25
        assert trip("dc1n0", "dc1n1") < 5
