"""A shaped link with two ranks at each end: `slurm/devcluster/wan`, and how the link profiler and a run start on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.link_pairs import TCP
from support.options import ROOT

from crosspipe.execute import Session
from crosspipe.execute.session import launch_local
from crosspipe.problem import LinkTable
from crosspipe.profile.launch import mpiexec_command
from crosspipe.store import load

_WAN = ROOT / "slurm" / "devcluster" / "wan" / "wan.py"
_ENVIRONMENT = {**TCP, "GLOO_SOCKET_IFNAME": "wan", "UCX_NET_DEVICES": "wan"}
_RANKS = 2  # of a site


@cache
def cannot() -> str:
    """Why there can be no such link on this machine; empty where there can: one is made and removed to know."""
    there = {
        "root": os.geteuid() == 0,
        "/dev/net/tun": Path("/dev/net/tun").exists(),
        "ip (iproute2)": shutil.which("ip") is not None,
    }
    missing = [name for name, is_there in there.items() if not is_there]
    if missing:
        return f"a shaped link needs {' and '.join(missing)}"
    try:
        with shaped():
            return ""
    except subprocess.CalledProcessError as error:
        return f"no shaped link can be made here ({error.stderr.strip().splitlines()[-1]})"


class ShapedLink(NamedTuple):
    """A link that is up; `name` and `directory` are those of wan.py."""

    name: str
    directory: str

    def change(self, *options: str) -> None:
        """Gives it other settings, from the next packet on."""
        _wan("set", self.name, self.directory, *options)

    def inside(self, site: int) -> list[str]:
        """What a command at that end begins with. Not nsenter: UCX looks for devices in /sys."""
        variables = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
        return ["ip", "netns", "exec", f"{self.name}-dc{site}", "env", *variables]

    def measure(self, sizes_bytes: Sequence[int], *, budget_s: float) -> LinkTable:
        """What the link profiler finds between the ranks, over gloo."""
        with tempfile.TemporaryDirectory() as folder:
            options = [
                f"--out={folder}",
                f"--sites={','.join(str(site) for site in (0, 1) for _ in range(_RANKS))}",
                f"--sizes={','.join(map(str, sizes_bytes))}",
                "--streams=none",
                "--transports=gloo",
                f"--time-budget={budget_s}",
            ]
            start = mpiexec_command(_RANKS, ["crosspipe.profile.links", *options])
            cut = start.index("-n")
            counted, rank = start[cut : cut + 2], start[cut + 2 :]
            command = [*start[:cut], *counted, *self.inside(0), *rank, ":", *counted, *self.inside(1), *rank]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                raise RuntimeError(f"the link profiler ended with {done.returncode}: {done.stderr[-500:]}")
            return load(Path(folder) / "links.json", LinkTable)

    def launch(self, session: Session) -> list[subprocess.Popen[bytes]]:
        """Starts the ranks of a session, each at its end of the link."""
        return launch_local(session, inside=lambda rank: self.inside(rank // _RANKS))


@contextlib.contextmanager
def shaped(*options: str) -> Iterator[ShapedLink]:
    """A link for as long as this lasts; `options` are those of `wan.py up`."""
    with tempfile.TemporaryDirectory(prefix="crosspipe-bench-") as folder:
        link = ShapedLink(f"cpb{os.getpid()}", f"{folder}/wan")
        _wan("up", *link, *options)
        try:
            yield link
        finally:
            _wan("down", *link)


def _wan(verb: str, name: str, directory: str, *options: str) -> None:
    command = [sys.executable, str(_WAN), verb, f"--name={name}", f"--directory={directory}", *options]
    subprocess.run(command, check=True, capture_output=True, text=True)
