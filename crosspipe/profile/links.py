"""The link benchmark: `python -m crosspipe.profile.links --out DIR`, one process a rank, under mpiexec or srun.

Every ordered pair of ranks plays ping-pong and sends windows of messages, over every transport and size; then the pairs
of the same two sites send together. Rank 0 fits alpha and beta, looks for reasons to distrust them, and writes
`links.json` (LinkTable) and `samples.parquet`. `docs/measuring.md` states the method.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.problem import LinkTable
from crosspipe.problem.links import Contention
from crosspipe.problem.sites import SiteLink, site_links
from crosspipe.profile import distrust
from crosspipe.profile.link_options import Options, parse
from crosspipe.profile.link_table import build_table, describe, with_torch
from crosspipe.profile.pingpong import Allowance, Cell, Channel, Skipped
from crosspipe.profile.places import Place, check_world, here
from crosspipe.profile.samples import frame, one_way, pack, windows, write_samples
from crosspipe.profile.streams import window_of
from crosspipe.profile.turns import job_limit_s, play, skipped_of, turns_of
from crosspipe.store import save
from crosspipe.store.files import disk_errors

if TYPE_CHECKING:
    from mpi4py import MPI

SAMPLES = "samples.parquet"
SAVE_EVERY_S = 5.0  # while measuring


def measure(options: Options, comm: MPI.Comm, library: str) -> LinkTable | None:
    """All of it, on every rank of `comm`; rank 0 writes and returns the table, the others None."""
    from crosspipe.profile.mpi_links import MpiChannel, start_mpi_device, wait_idle

    started, clocks = datetime.datetime.now(datetime.UTC), distrust.read_clocks()
    places: list[Place] = comm.allgather(here(comm.rank, options.sites[comm.rank] if options.sites else 0))
    largest = max([*options.sizes_bytes, *(size * window_of(size) for size in options.stream_sizes_bytes)])
    channels: dict[str, Channel] = {"mpi": MpiChannel(comm, largest)}
    if with_torch(options.transports):
        from crosspipe.profile.gloo_links import GlooChannel, start_gloo, stop_gloo

        wait_idle(comm)  # importing torch takes seconds, and not the same everywhere
        start_gloo(comm, places)
        channels["gloo"] = GlooChannel(largest)
    if "nccl" in options.transports:
        from crosspipe.profile.nccl_links import start_nccl

        channels["nccl"] = start_nccl(comm.rank, places, largest)
    if "mpi_device" in options.transports:
        channels["mpi_device"] = start_mpi_device(comm, places, largest)
    if comm.rank == 0:
        with disk_errors(options.out):
            options.out.mkdir(parents=True, exist_ok=True)
    played = _play_all(channels, comm, places, options)
    if with_torch(options.transports):
        stop_gloo()
    moments = comm.gather((clocks, distrust.read_clocks()))
    table = None
    if moments is not None and played is not None:
        _say("fitting")
        packed, skipped = played
        samples = frame(packed, options.transports)
        times = one_way(samples)
        table = build_table(
            times,
            windows(samples),
            places=places,
            transports=options.transports,
            sizes_bytes=options.sizes_bytes,
            environ=os.environ,
            skipped=skipped,
            findings=distrust.clock_steps(*zip(*moments, strict=True)),
            environment={
                "started": started.isoformat(timespec="seconds"),
                **describe(
                    times,
                    places=places,
                    transports=options.transports,
                    rule=options.rule,
                    environ=os.environ,
                    library=library,
                ),
            },
        )
        write_samples(options.out / SAMPLES, samples)
        save(options.out / "links.json", table)
    wait_idle(comm)
    return table


def _play_all(
    channels: Mapping[str, Channel], comm: MPI.Comm, places: Sequence[Place], options: Options
) -> tuple[NDArray[np.int64], list[Skipped]] | None:
    """Plays all turns; on rank 0 the packed samples of all ranks, and what was skipped.

    After every turn rank 0 has the samples so far, and writes them now and then: a measurement that is cut off leaves
    what it saw.
    """
    from crosspipe.profile.mpi_links import MpiControl, wait_idle

    turns = turns_of(options, places)
    control = MpiControl(comm)
    parts: list[NDArray[np.int64]] = []
    skipped: list[Skipped] = []
    own: list[Cell] = []
    started = saved = time.monotonic()
    limit_s = min(options.time_limit_s, job_limit_s(os.environ, time.time()))
    for number, turn in enumerate(turns):
        wait_idle(comm)
        spent_s = time.monotonic() - started
        if comm.rank == 0:
            _say(f"turn {number + 1} of {len(turns)}, after {spent_s:.0f} s: {turn}")
        # what earlier turns left over is shared by those to come; rank 0's clock decides for all
        left = len(turns) - number
        allowed = comm.bcast(Allowance((options.time_budget_s - spent_s) / left, (limit_s - spent_s) / left))
        cells = play(turn, channels[turn.transport], control, comm.rank, options, allowed, own)
        own += cells
        wait_idle(comm)
        gathered = comm.gather((pack(cells, options.transports), skipped_of(cells)))
        if gathered is None:
            continue
        parts += [packed for packed, _ in gathered]
        skipped += [one for _, some in gathered for one in some]
        if time.monotonic() - saved > SAVE_EVERY_S:
            write_samples(options.out / SAMPLES, frame(np.concatenate(parts), options.transports))
            saved = time.monotonic()
    return (np.concatenate(parts), skipped) if comm.rank == 0 else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark on this rank; returns the exit code."""
    options = parse(arguments, __doc__)
    if with_torch(options.transports) and importlib.util.find_spec("torch") is None:
        named = ",".join(options.transports)
        return _fail(UsageError("--transports", named, "needs torch", "pip install 'crosspipe[train]', or use mpi"))
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but finds no MPI library
        remedy = "pip install 'crosspipe[laptop]' on a laptop; on a cluster [mpi], and load its MPI module"
        return _fail(UsageError("mpi4py", None, str(error).splitlines()[0], remedy))
    comm = MPI.COMM_WORLD
    library = " ".join(MPI.Get_library_version().splitlines()[0].strip("\x00").split())
    try:
        check_world(
            comm.size, sites=len(options.sites) or None, ranks=options.ranks, environ=os.environ, library=library
        )
        if comm.size < 2:
            raise UsageError("MPI world size", comm.size, "a link has two ends", "start 2 ranks or more")
        # rank 0 writes, and decides: on another machine the path may look different
        if comm.bcast(options.out.exists() and not options.out.is_dir()):
            raise UsageError("--out", str(options.out), "is no folder", "give a folder, it is made if missing")
    except CrosspipeError as error:  # every rank comes to the same: one says it, all end
        return _fail(error) if comm.rank == 0 else error.exit_code
    try:
        table = measure(options, comm, library)
    except CrosspipeError as error:
        _end_all(comm, str(error), error.exit_code)
        raise
    except BaseException:
        _end_all(comm, traceback.format_exc(), 1)
        raise
    if table is not None:
        for line in summary(table):
            print(line)
    return int(bool(comm.bcast(options.strict and table is not None and bool(table.findings))))


def summary(table: LinkTable) -> list[str]:
    """What to tell a reader in a few lines: each site pair over each transport, and the findings."""
    links = [link for transport in table.transports() for link in site_links(table, transport)]
    return [
        *map(_line, links),
        *map(_sharing, table.contention),
        *(f"distrust: {found.name}: {found.detail}" for found in table.findings),
    ]


def _sharing(seen: Contention) -> str:
    cores = "" if seen.enough_cores else ", on fewer cores than ranks"
    return (
        f"site {seen.source_site} -> {seen.target_site} over {seen.transport}: {len(seen.pairs)} pairs sending at once "
        f"get {seen.kept_share:.0%} of what they get alone{cores}"
    )


def _line(link: SiteLink) -> str:
    low, high = (latency / 1e3 for latency in link.latency_range_ns)
    bandwidth = link.bandwidth_bytes_per_s
    rate = "no byte cost" if bandwidth is None else f"{bandwidth * 8 / 1e9:.3g} Gbit/s"
    return (
        f"site {link.source_site} -> {link.target_site} over {link.transport}: alpha {link.latency_ns / 1e3:.1f} us "
        f"({low:.1f} to {high:.1f}), {rate}, {link.pairs} pairs of ranks"
        f"{'' if link.symmetric is None else ', symmetric' if link.symmetric else ', NOT symmetric'}"
    )


def _end_all(comm: MPI.Comm, why: str, code: int) -> None:
    """Ends every rank: one that merely ended would leave the others waiting for ever."""
    _say(f"profile links: rank {comm.rank}: {why}")
    time.sleep(0.5)  # mpiexec drops what it has not yet forwarded when it hears of an abort
    comm.Abort(code)


def _fail(error: CrosspipeError) -> int:
    _say(f"profile links: {error}")
    return error.exit_code


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
