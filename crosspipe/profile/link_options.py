"""What the link benchmark's command line asks for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from crosspipe.profile.pingpong import Rule
from crosspipe.profile.streams import stream_sizes

TRANSPORTS = ("mpi", "gloo")  # unless told otherwise
KNOWN = (*TRANSPORTS, "nccl", "mpi_device")
SIZES_BYTES = tuple(4**power for power in range(12))  # 1 B to 4 MiB


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. `sites[r]` is the site of rank r; empty: all in site 0.

    Windows of messages in flight are measured at `stream_sizes_bytes`; empty: not at all. `time_budget_s` is for being
    sure of the medians; the few repetitions that every size gets may take longer, up to `time_limit_s` in all.
    """

    out: Path
    sizes_bytes: tuple[int, ...] = SIZES_BYTES
    stream_sizes_bytes: tuple[int, ...] = stream_sizes(SIZES_BYTES)
    transports: tuple[str, ...] = TRANSPORTS
    time_budget_s: float = 5.0
    time_limit_s: float = 120.0
    sites: tuple[int, ...] = ()
    ranks: int | None = None
    strict: bool = False
    rule: Rule = Rule()


def parse(arguments: Sequence[str] | None = None, description: str | None = None) -> Options:
    """The options of a command line; argparse ends the process with code 2 on a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m crosspipe.profile.links", description=description)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the two files go")
    parser.add_argument("--sizes", type=_numbers(1), default=SIZES_BYTES, metavar="BYTES,…", help="message sizes")
    parser.add_argument("--largest", type=int, metavar="BYTES", help="more sizes, in powers of 4, up to this one")
    parser.add_argument("--streams", type=_sizes_or_none, metavar="BYTES,…", help="sizes of windows in flight, or none")
    parser.add_argument("--transports", type=_transports, default=TRANSPORTS, metavar="mpi,gloo,nccl,mpi_device")
    parser.add_argument("--time-budget", type=float, default=5.0, metavar="S", help="for all pairs together")
    parser.add_argument("--time-limit", type=float, metavar="S", help="sizes are skipped beyond; 5 budgets or 120 s")
    parser.add_argument("--sites", type=_numbers(0), default=(), metavar="0,0,1,1", help="the site of every rank")
    parser.add_argument("--ranks", type=int, help="refuse a world of another size")
    parser.add_argument("--width", type=float, default=Rule().width, help="wanted 95 %% interval over median")
    parser.add_argument("--fewest", type=int, default=Rule().fewest, help="round trips a size, whatever the time")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is reason to distrust the result")
    given = parser.parse_args(arguments)
    if not given.time_budget > 0 or not given.width > 0 or given.fewest < 6:
        parser.error("--time-budget and --width must be above 0, --fewest 6 or more (below, there is no 95 % interval)")
    limit_s = max(120.0, 5 * given.time_budget) if given.time_limit is None else given.time_limit
    if not limit_s >= given.time_budget:
        parser.error("--time-limit must not be below --time-budget")
    sizes = sorted(set(given.sizes))
    while given.largest and sizes[-1] * 4 <= given.largest:
        sizes.append(sizes[-1] * 4)
    return Options(
        out=given.out,
        sizes_bytes=tuple(sizes),
        stream_sizes_bytes=stream_sizes(sizes) if given.streams is None else given.streams,
        transports=given.transports,
        time_budget_s=given.time_budget,
        time_limit_s=limit_s,
        sites=given.sites,
        ranks=given.ranks,
        strict=given.strict,
        rule=Rule(width=given.width, fewest=given.fewest, most=max(given.fewest, Rule().most)),
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
