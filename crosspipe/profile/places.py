"""Where the ranks of a measurement really sit, and whether there are as many as were started.

Two nodes can be one machine under two names, and a wrong `--mpi` gives N worlds of one rank that each measure
themselves. Both are facts of the launch; what to think of them is `crosspipe.profile.distrust`'s business.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from crosspipe.errors import FieldError

SHARED_MEMORY_NAMES = {"all", "shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}  # of UCX_TLS
LAUNCHER_SIZES = ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
TRANSPORT_VARIABLES = ("UCX_", "FI_", "MPIR_CVAR_", "MPICH_", "OMPI_MCA_", "I_MPI_", "GLOO_", "NCCL_")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place: `node` as the scheduler calls it, `host` as the machine calls itself, `machine` the kernel.

    `machine` is the boot id, the same for everything that shares a kernel, containers included; `network` the network
    namespace; `cores` the numbers of those that this rank may use.
    """

    rank: int
    site: int
    node: str
    host: str
    machine: str
    network: str
    cores: tuple[int, ...]


def here(rank: int, site: int) -> Place:
    """The place of the calling process (Linux)."""
    host = socket.gethostname()
    return Place(
        rank=rank,
        site=site,
        node=os.environ.get("SLURMD_NODENAME", host),
        host=host,
        machine=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        network=str(Path("/proc/self/ns/net").readlink()),
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def medium(transport: str, one: Place, other: Place, environ: Mapping[str, str]) -> str:
    """What carries a message between two places: "network", "loopback" (TCP inside a machine) or "shared memory".

    NCCL inside a machine uses shared memory or a link between the GPUs, which is here called shared memory too.
    For MPI on one machine, shared memory is assumed unless UCX is denied it (`UCX_TLS=tcp,self`) and MPICH's own is not
    used: between nodes of different names, or with `MPIR_CVAR_NOLOCAL=1`. Seen with MPICH 5.0, ch4:ucx.
    """
    if one.machine != other.machine:
        return "network"
    denied = not _ucx_shares_memory(environ) and (one.node != other.node or _is_set(environ, "MPIR_CVAR_NOLOCAL"))
    if transport == "nccl" or (transport in ("mpi", "mpi_device") and not denied):
        return "shared memory"
    return "loopback" if one.network == other.network else "network"


def cores(places: Sequence[Place]) -> dict[str, int]:
    """How many cores the ranks of each machine may use together."""
    usable: dict[str, set[int]] = {}
    for place in places:
        usable.setdefault(place.machine, set()).update(place.cores)
    return {machine: len(numbers) for machine, numbers in usable.items()}


def device_of(rank: int, places: Sequence[Place], devices: int, transport: str) -> int:
    """The number of the GPU of `rank`, of the `devices` it sees: that of ranks before it on its machine.

    Where it sees a single one, that is its own (Slurm's --gpus-per-task). FieldError where GPUs do not suffice.
    """
    if devices == 1:
        return 0
    mine = sum(place.machine == places[rank].machine for place in places[:rank])
    if mine >= devices:
        wrong = f"rank {rank} on {places[rank].host} finds {devices} GPUs"
        raise FieldError("--transports", transport, wrong, "start fewer ranks there")
    return mine


def check_world(world: int, *, sites: int | None, ranks: int | None, environ: Mapping[str, str], library: str) -> None:
    """Raises FieldError unless the MPI world has as many ranks as were asked for.

    Asked for by `--ranks` or one site a rank in `--sites`, exactly; and at least the tasks that the launcher says it
    started (Slurm's step, a process manager's PMI size): a smaller world is several worlds. `library` names the MPI
    loaded, for the message.
    """
    asked = {"--ranks": ranks, "--sites": sites}
    started = {name: int(environ[name]) for name in LAUNCHER_SIZES if environ.get(name, "").isdecimal()}
    unheard = [f"{name} says {tasks} tasks were started" for name, tasks in started.items() if tasks > world]
    wrong = [f"{name} is for {count}" for name, count in asked.items() if count not in (None, world)] + unheard
    if not wrong:
        return
    if world > 1 and not unheard:
        remedy = f"start {ranks or sites} ranks, or say one site for each of these {world}"
    elif "SLURM_STEP_NUM_TASKS" in started:
        remedy = "most likely srun's --mpi does not fit this MPI; try --mpi=pmi2 or --mpi=pmix (srun --mpi=list)"
    else:
        remedy = "most likely mpiexec belongs to another MPI, or is missing; use the one that comes with this library"
    raise FieldError("MPI world size", world, f"{' and '.join(wrong)} ({library})", remedy)


def transport_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer what MPI, gloo and NCCL use."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(TRANSPORT_VARIABLES)}


def _ucx_shares_memory(environ: Mapping[str, str]) -> bool:
    listed = environ.get("UCX_TLS", "all")
    named = bool(SHARED_MEMORY_NAMES & set(listed.lstrip("^").split(",")))
    return named != listed.startswith("^")


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0").lower() not in ("0", "no", "false", "off")
