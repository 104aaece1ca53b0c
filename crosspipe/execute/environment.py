"""Where a run took place, as text for its record: versions, host, threads, and the commit it was made from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

import crosspipe


def describe(transport: str) -> dict[str, str]:
    """Versions and machine of this process; `git_commit` and `git_dirty` where the package is in a checkout."""
    return {
        "crosspipe": crosspipe.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transport": transport,
        "host": platform.node(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
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
