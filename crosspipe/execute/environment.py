"""Where a run took place, as text for its record: versions, host, threads, and the commit it was made from."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import torch

import crosspipe


def describe(transport: str) -> dict[str, str]:
    """Versions and machine of this process; `git_commit` and `git_dirty` where the package is in a checkout,
    `congestion_control` where it has TCP connections to other addresses."""
    return {
        "crosspipe": crosspipe.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transport": transport,
        "host": platform.node(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
        **_congestion_control(),
        **_commit(Path(crosspipe.__file__).resolve().parents[1]),
    }


def _commit(root: Path) -> dict[str, str]:
    if not (root / ".git").exists() or shutil.which("git") is None:
        return {}

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    # untracked files do not make a checkout dirty: logs and stores lie about
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": "true" if changed else "false"}


def _congestion_control() -> dict[str, str]:
    """What the kernel says of each connection: a route may ask for another one than the machine's."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers, no files to go on with
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6) and end.getpeername()[0] != end.getsockname()[0]:
                    name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                    found.add(name.partition(b"\0")[0].decode())
        except OSError:  # not connected, not TCP, or closed since
            continue
    return {"congestion_control": ", ".join(sorted(found))} if found else {}
