"""The command that starts MPI ranks on this machine: the mpiexec that belongs to this Python, with what it needs.

For one machine (laptops, tests, `cluster=local`); across nodes, srun starts the ranks. An mpiexec of another MPI than
the one mpi4py loads gives N worlds of one rank, so the one beside the interpreter comes first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from crosspipe.errors import FieldError


def find_mpiexec(search_path: str | None = None) -> Path:
    """The mpiexec beside the running interpreter, else the first on `search_path` (default: PATH).

    Raises FieldError where there is none, with what to install.
    """
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec", path=search_path)
    if found is None:
        raise FieldError(
            "mpiexec",
            None,
            f"found neither in {beside.parent} nor on PATH",
            "pip install mpich mpi4py (a laptop), or load the cluster's MPI module",
        )
    return Path(found)


def mpiexec_command(ranks: int, module_args: Sequence[str]) -> list[str]:
    """`python -m *module_args` on `ranks` ranks of this machine, as an argument list.

    Works as root and with more ranks than cores. Inside a Slurm job the ranks still start here, not through srun.
    """
    if ranks < 1:
        raise FieldError("ranks", ranks, "nothing to start", "use 1 or more")
    mpiexec = find_mpiexec()
    return [str(mpiexec), *_options(mpiexec), "-n", str(ranks), sys.executable, "-m", *module_args]


def _options(mpiexec: Path) -> list[str]:
    """What this kind of mpiexec needs to start any number of ranks here, as any user."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=30)
    text = (said.stdout + said.stderr).lower()
    if "open mpi" in text or "openrte" in text:
        return ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    if "hydra" in text:
        return ["-launcher", "fork", "-hosts", "localhost"]
    return []
