"""What this machine offers and what is missing, each with the command that brings it (`crosspipe doctor`).

Each look is a small function that returns one line; nothing is changed, and what may hang or crash (an MPI library, a
driver) is looked at in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from crosspipe.campaign.configs import config_dir, user_dir
from crosspipe.campaign.slurm.queue import SlurmError, call, is_off
from crosspipe.errors import CrosspipeError


class Item(NamedTuple):
    """One line: `missing` is what the demo cannot do without; a `note` is good to know."""

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    remedy: str = ""


def examine(store: Path) -> list[Item]:
    """Everything, in the order in which a newcomer needs it."""
    machine = [_mpi(), _mpiexec(), _torch(), _priority(), *_slurm()]
    return [_python(), *_packages(), _configs(), *machine, _store(store), _numba_cache()]


def _python() -> Item:
    found = f"{platform.python_version()} at {sys.executable}"
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Item("python", "ok", f"{found}, {platform.machine()}, {cpus} CPUs")


def _packages() -> Iterator[Item]:
    wanted = {
        "crosspipe": (
            "hydra-core",
            "omegaconf",
            "msgspec",
            "numpy",
            "numba",
            "ortools",
            "polars",
            "matplotlib",
            "rich",
        ),
        "crosspipe[slurm]": ("submitit",),
        "crosspipe[train]": ("torch",),
        "crosspipe[mpi]": ("mpi4py",),
    }
    for extra, names in wanted.items():
        versions, absent = [], []
        for name in names:
            try:
                versions.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                absent.append(name)
        if absent:
            yield Item(extra, "missing", f"without {', '.join(absent)}", f"pip install '{extra}'")
        else:
            yield Item(extra, "ok", ", ".join(versions))


def _configs() -> Item:
    mine = user_dir()
    return Item("configs", "ok", f"{config_dir()}{'' if mine is None else f', after your own {mine}'}")


def _mpi() -> Item:
    code = "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0])"
    said = _ask([sys.executable, "-c", code])
    if said is None:
        remedy = "pip install 'crosspipe[laptop]'; on a cluster load its MPI module and pip install 'crosspipe[mpi]'"
        return Item("MPI library", "missing", "mpi4py finds none", remedy)
    if _installed("mpich") and shutil.which("sbatch"):
        return Item(
            "MPI library", "note", f"{said}, from a wheel, under Slurm",
            "use the cluster's own: pip uninstall mpich; module load its MPI; pip install --no-binary=mpi4py mpi4py",
        )  # fmt: skip
    return Item("MPI library", "ok", said)


def _mpiexec() -> Item:
    from crosspipe.profile.launch import mpiexec_command

    try:
        command = mpiexec_command(2, ["crosspipe.campaign.doctor"])
    except CrosspipeError as error:
        return Item("mpiexec", "missing", str(error), "pip install 'crosspipe[laptop]', or load the MPI module")
    code = "from mpi4py import MPI; world = MPI.COMM_WORLD; world.rank == 0 and print(world.size)"
    said = _ask([*command[: command.index("-m")], "-c", code])
    if said is None:
        return Item(
            "mpiexec", "missing", f"{command[0]} does not start 2 ranks", "try it by hand: " + " ".join(command[:4])
        )
    if said != "2":
        detail = f"{command[0]} gives worlds of size {', '.join(said.split())}, not one of 2: it belongs to another MPI"
        return Item("mpiexec", "missing", detail, "use the mpiexec of the MPI that mpi4py was built with")
    return Item("mpiexec", "ok", f"{command[0]} starts a world of 2")


def _torch() -> Item:
    code = (
        "import torch; gpus = range(torch.cuda.device_count());"
        "print(torch.__version__, *map(torch.cuda.get_device_name, gpus), sep='; ')"
    )
    said = _ask([sys.executable, "-c", code])
    if said is None:
        return Item("torch", "missing", "cannot be imported", "pip install 'crosspipe[train]'")
    version, *gpus = said.split("; ")
    return Item(
        "torch", "ok", f"{version}, " + (", ".join(gpus) if gpus else "no CUDA device: runs are on CPUs, over gloo")
    )


def _priority() -> Item:
    from crosspipe.execute.priority import WORDS, may_be_prompt

    allowed = may_be_prompt()
    remedy = "" if allowed else "for more exact runs where ranks share cores: rtprio in /etc/security/limits.conf"
    return Item("priority", "ok" if allowed else "note", WORDS[allowed], remedy)


def _slurm() -> Iterator[Item]:
    absent = [name for name in ("sbatch", "squeue", "sacct", "scancel", "srun") if shutil.which(name) is None]
    if len(absent) == 5:
        yield Item("Slurm", "note", "no Slurm commands: cluster=local runs everything on this machine")
        return
    if absent:
        yield Item("Slurm", "note", f"without {', '.join(absent)}", "ask the administrators for the client commands")
    try:
        said = call(["sinfo", "--noheader", "--format=%P %D nodes"])
    except SlurmError as error:
        yield Item("Slurm", "note", f"installed, but does not answer here: {error}", "use a machine of the cluster")
        return
    yield Item("Slurm", "ok", ", ".join(said.splitlines()))
    if shutil.which("sacct"):
        try:
            call(["sacct", "--noheader", "--allocations"])
        except SlurmError as error:
            why = "is off: states come from squeue and the store" if is_off(error) else f"does not answer: {error}"
            yield Item("sacct", "note", f"accounting {why}")


def _store(store: Path) -> Item:
    place = store if store.is_dir() else store.absolute().parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Item("store", "missing", f"{store}: cannot be written ({error.strerror})", "choose another: store=DIR")
    free = shutil.disk_usage(place).free / 2**30
    return Item("store", "ok" if free > 1 else "note", f"{store} can be written, {free:.0f} GiB free")


def _numba_cache() -> Item:
    from crosspipe.schedule import kernel

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    place = Path(chosen) if chosen else Path(kernel.__file__).parent / "__pycache__"
    if os.access(place if place.exists() else place.parent, os.W_OK):
        return Item("numba cache", "ok", str(place))
    return Item("numba cache", "note", f"{place} cannot be written: the kernel is compiled anew each time",
                "export NUMBA_CACHE_DIR=$HOME/.cache/numba")  # fmt: skip


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _ask(command: list[str]) -> str | None:
    """What a command says on stdout; None where it fails or does not answer."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()
