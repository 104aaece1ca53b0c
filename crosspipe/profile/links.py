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
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.problem import LinkTable
from crosspipe.problem.links import Contention
from crosspipe.problem.sites import SiteLink, site_links
from crosspipe.profile import distrust
from crosspipe.profile.link_options import Options, parse
from crosspipe.profile.link_table import build_table, describe, run_transport, with_torch
from crosspipe.profile.pingpong import SINGLE, TOGETHER, Cell, Channel, Control, Pattern, initiate, respond
from crosspipe.profile.places import Place, check_world, cores, here
from crosspipe.profile.rounds import Round, quiet_rounds, rounds
from crosspipe.profile.samples import frame, one_way, pack, windows, write_samples
from crosspipe.profile.streams import crossings, patterns, window_of
from crosspipe.store import save
from crosspipe.store.files import disk_errors

if TYPE_CHECKING:
    from mpi4py import MPI

TOGETHER_S = 0.5  # pairs that are to disturb one another need some time side by side


def measure(options: Options, comm: MPI.Comm, library: str) -> LinkTable | None:
    """All of it, on every rank of `comm`; rank 0 writes and returns the table, the others None."""
    from crosspipe.profile.mpi_links import MpiChannel, wait_idle

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
    cells = _play_all(channels, comm, places, options)
    if with_torch(options.transports):
        stop_gloo()
    moments = comm.gather((clocks, distrust.read_clocks()))
    packed = comm.gather(pack(cells, options.transports))
    table = None
    if moments is not None and packed is not None:
        _say("fitting")
        samples = frame(np.concatenate(packed), options.transports)
        times = one_way(samples)
        table = build_table(
            times,
            windows(samples),
            places=places,
            transports=options.transports,
            sizes_bytes=options.sizes_bytes,
            environ=os.environ,
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
        with disk_errors(options.out):
            options.out.mkdir(parents=True, exist_ok=True)
        write_samples(options.out / "samples.parquet", samples)
        save(options.out / "links.json", table)
    wait_idle(comm)
    return table


def _play_all(channels: Mapping[str, Channel], comm: MPI.Comm, places: Sequence[Place], options: Options) -> list[Cell]:
    """This rank's cells of all rounds over all transports, within the time budget as far as the rule allows."""
    from crosspipe.profile.mpi_links import MpiControl, wait_idle

    plan = quiet_rounds(rounds(comm.size), [place.machine for place in places], cores(places))
    turns = [_Turn(transport, pairs) for transport in options.transports for pairs in plan]
    if options.stream_sizes_bytes:
        across = crossings([place.site for place in places])
        turns += [_Turn(run_transport(options.transports), pairs, together=True) for pairs in across]
    control = MpiControl(comm)
    cells: list[Cell] = []
    deadline = time.monotonic() + options.time_budget_s
    for number, turn in enumerate(turns):
        wait_idle(comm)
        if comm.rank == 0:
            who = " ".join(f"{source}-{target}" for source, target in turn.pairs)
            _say(f"turn {number + 1} of {len(turns)}: {turn.transport} {who}{' together' if turn.together else ''}")
        # what earlier turns left over is shared by those to come; rank 0's clock decides for all
        share_s: float = comm.bcast((deadline - time.monotonic()) / (len(turns) - number))
        play = _play_together if turn.together else _play
        cells += play(channels[turn.transport], control, comm.rank, turn.pairs, options, share_s)
    wait_idle(comm)
    return cells


class _Turn(NamedTuple):
    """What happens at once: pairs that share no end, each on its own or all to load the same wire."""

    transport: str
    pairs: Round
    together: bool = False


def _play(channel: Channel, control: Control, rank: int, pairs: Round, options: Options, share_s: float) -> list[Cell]:
    """This rank's part of a round: nothing if it rests; else both directions, every size, in `share_s` seconds."""
    cells = []
    for pair in pairs:
        if rank not in pair:
            continue
        directions = (pair, pair[::-1])
        plan = [(*ends, size, SINGLE) for ends in directions for size in options.sizes_bytes]
        plan += [
            (*ends, size, pattern)
            for ends in directions
            for size in options.stream_sizes_bytes
            for pattern in patterns(*ends, size)
        ]
        for source, target, size, pattern in plan:
            if rank == source:
                budget_s = share_s / len(plan)
                cells.append(initiate(channel, control, source, target, size, budget_s, options.rule, pattern))
            else:
                respond(channel, control, source, size, pattern)
    return cells


def _play_together(
    channel: Channel, control: Control, rank: int, pairs: Round, options: Options, share_s: float
) -> list[Cell]:
    """This rank's part of a crossing: its pair sends its largest windows until the time is over, as all others do."""
    size = max(options.stream_sizes_bytes)
    pattern = Pattern(TOGETHER, window_of(size))
    until_time_is_over = msgspec.structs.replace(options.rule, width=0.0, most=1_000_000)
    cells = []
    for source, target in pairs:
        if rank == source:
            budget_s = max(share_s, TOGETHER_S)
            cells.append(initiate(channel, control, source, target, size, budget_s, until_time_is_over, pattern))
        elif rank == target:
            respond(channel, control, source, size, pattern)
    return cells


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
        if options.out.exists() and not options.out.is_dir():
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
