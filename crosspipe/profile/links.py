"""The link benchmark: `python -m crosspipe.profile.links --out DIR`, one process a rank, under mpiexec or srun.

Every ordered pair of ranks plays ping-pong and sends windows of messages, over every transport and size; then the pairs
of the same two sites send together. Rank 0 fits alpha and beta, looks for reasons to distrust them, and writes
`links.json` (LinkTable) and `samples.parquet`. `docs/measuring.md` states the method.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.problem import LinkTable
from crosspipe.problem.links import Contention
from crosspipe.problem.sites import SiteLink, site_links
from crosspipe.profile import distrust
from crosspipe.profile.link_table import build_table, describe, run_transport, with_torch
from crosspipe.profile.pingpong import SINGLE, TOGETHER, Cell, Channel, Control, Pattern, Rule, initiate, respond
from crosspipe.profile.places import Place, check_world, cores, here
from crosspipe.profile.rounds import Round, quiet_rounds, rounds
from crosspipe.profile.samples import frame, one_way, pack, windows, write_samples
from crosspipe.profile.streams import crossings, patterns, stream_sizes, window_of
from crosspipe.store import save
from crosspipe.store.files import disk_errors

if TYPE_CHECKING:
    from mpi4py import MPI

TRANSPORTS = ("mpi", "gloo")  # unless told otherwise
KNOWN = (*TRANSPORTS, "nccl")
SIZES_BYTES = tuple(4**power for power in range(12))  # 1 B to 4 MiB
TOGETHER_S = 0.5  # pairs that are to disturb one another need some time side by side


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. `sites[r]` is the site of rank r; empty: all in site 0.

    Windows of messages in flight are measured at `stream_sizes_bytes`; empty: not at all.
    """

    out: Path
    sizes_bytes: tuple[int, ...] = SIZES_BYTES
    stream_sizes_bytes: tuple[int, ...] = stream_sizes(SIZES_BYTES)
    transports: tuple[str, ...] = TRANSPORTS
    time_budget_s: float = 5.0
    sites: tuple[int, ...] = ()
    ranks: int | None = None
    strict: bool = False
    rule: Rule = Rule()


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; argparse ends the process with code 2 on a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m crosspipe.profile.links", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the two files go")
    parser.add_argument("--sizes", type=_numbers(1), default=SIZES_BYTES, metavar="BYTES,…", help="message sizes")
    parser.add_argument("--largest", type=int, metavar="BYTES", help="more sizes, in powers of 4, up to this one")
    parser.add_argument("--streams", type=_sizes_or_none, metavar="BYTES,…", help="sizes of windows in flight, or none")
    parser.add_argument("--transports", type=_transports, default=TRANSPORTS, metavar="mpi,gloo,nccl")
    parser.add_argument("--time-budget", type=float, default=5.0, metavar="S", help="for all pairs together")
    parser.add_argument("--sites", type=_numbers(0), default=(), metavar="0,0,1,1", help="the site of every rank")
    parser.add_argument("--ranks", type=int, help="refuse a world of another size")
    parser.add_argument("--width", type=float, default=Rule().width, help="wanted 95 %% interval over median")
    parser.add_argument("--fewest", type=int, default=Rule().fewest, help="round trips a size, whatever the time")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is reason to distrust the result")
    given = parser.parse_args(arguments)
    if not given.time_budget > 0 or not given.width > 0 or given.fewest < 6:
        parser.error("--time-budget and --width must be above 0, --fewest 6 or more (below, there is no 95 % interval)")
    sizes = sorted(set(given.sizes))
    while given.largest and sizes[-1] * 4 <= given.largest:
        sizes.append(sizes[-1] * 4)
    return Options(
        out=given.out,
        sizes_bytes=tuple(sizes),
        stream_sizes_bytes=stream_sizes(sizes) if given.streams is None else given.streams,
        transports=given.transports,
        time_budget_s=given.time_budget,
        sites=given.sites,
        ranks=given.ranks,
        strict=given.strict,
        rule=Rule(width=given.width, fewest=given.fewest, most=max(given.fewest, Rule().most)),
    )


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
    options = parse(arguments)
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


def _numbers(smallest: int) -> Callable[[str], tuple[int, ...]]:
    def read(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        numbers = tuple(int(part) for part in parts if part.isdecimal())
        if len(numbers) < len(parts) or min(numbers) < smallest:
            raise argparse.ArgumentTypeError(f"{text!r}: whole numbers >= {smallest}, joined by commas")
        return numbers

    return read


def _sizes_or_none(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(sorted(set(_numbers(1)(text))))


def _transports(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if set(names) - set(KNOWN):
        raise argparse.ArgumentTypeError(f"{text!r}: use {', '.join(KNOWN)} or some of them, joined by commas")
    return names


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
