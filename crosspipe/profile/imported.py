"""A LinkTable from a CSV that somebody else measured: two sites, latency and bandwidth, the units in the header.

    source_site,target_site,latency_ms,bandwidth_gbit_per_s
    zurich,lugano,1.9,10

A bare number whose unit nobody wrote down is the error this file exists to prevent: columns without units are refused.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.problem import Finding, Link, LinkTable
from crosspipe.profile.distrust import unit_slips

TRANSPORT = "imported"
NANOSECONDS = {"latency_ns": 1.0, "latency_us": 1e3, "latency_ms": 1e6, "latency_s": 1e9}
BYTES_PER_S = {
    "bandwidth_mbit_per_s": 1e6 / 8,
    "bandwidth_gbit_per_s": 1e9 / 8,
    "bandwidth_bytes_per_s": 1.0,
    "bandwidth_mbyte_per_s": 1e6,
    "bandwidth_gbyte_per_s": 1e9,
}


def read_link_csv(path: str | Path, *, site_of_rank: Sequence[int] = ()) -> LinkTable:
    """The table of `path`, for ranks placed by `site_of_rank` (default: one rank a site, in order).

    The first two columns name the sites of a directed pair, as numbers from 0 or as names (numbered in order of
    appearance, `environment["site 0"]`). A pair given in one direction only stands for both, which the finding
    `symmetry_assumed` says; a site paired with itself is the inside of that site; an empty bandwidth is no byte cost.
    Pairs of ranks without a row have no link. Raises ArtifactError where the file is no such table, FieldError with
    file, row and column where a value cannot be used.
    """
    path = Path(path)
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); give a CSV table of links") from None
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path}: is not text in UTF-8 ({error.reason}); save the table as CSV in UTF-8") from None
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    latency_column, bandwidth_column = _columns(path, rows[0] if rows else [])
    names = _site_names(path, [row[:2] for row in rows[1:]])
    given: dict[tuple[int, int], Link] = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise ArtifactError(f"{path}: row {number} has {len(row)} cells; give the {len(rows[0])} of the header")
        pair = (names[row[0]], names[row[1]])
        if pair in given:
            raise FieldError(f"row {number}", ",".join(row[:2]), "is given twice", "keep one row a pair", file=path)
        given[pair] = _link(path, number, pair, rows[0], row, latency_column, bandwidth_column)
    both, findings = _both_directions(given)
    findings += unit_slips(list(given.values()), range(len(names)))
    site_of_rank = tuple(site_of_rank) or tuple(range(len(names)))
    return LinkTable(
        links=tuple(
            msgspec.structs.replace(both[here, there], source=source, target=target)
            for source, here in enumerate(site_of_rank)
            for target, there in enumerate(site_of_rank)
            if source != target and (here, there) in both
        ),
        site_of_rank=site_of_rank,
        run_transport=TRANSPORT,
        findings=tuple(findings),
        environment={"origin": f"imported from {path.name}"} | {f"site {n}": name for name, n in names.items()},
    )


def _columns(path: Path, header: list[str]) -> tuple[int, int]:
    """Where latency and bandwidth stand; ArtifactError where the header does not say."""
    latency = [i for i, name in enumerate(header) if name in NANOSECONDS]
    bandwidth = [i for i, name in enumerate(header) if name in BYTES_PER_S]
    if len(latency) != 1 or len(bandwidth) != 1 or min(latency + bandwidth) < 2:
        raise ArtifactError(
            f"{path}: header = {','.join(header)!r}: needs two columns of sites, then latency and bandwidth with their "
            f"units; use one of {', '.join(NANOSECONDS)} and one of {', '.join(BYTES_PER_S)}"
        )
    return latency[0], bandwidth[0]


def _site_names(path: Path, pairs: list[list[str]]) -> dict[str, int]:
    """Number of each site: its own where all are numbers, else in order of appearance."""
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    if not names or "" in names:
        raise ArtifactError(f"{path}: {'a site has no name' if names else 'has no rows'}; give one row a pair of sites")
    if not all(name.isdecimal() for name in names):
        return {name: number for number, name in enumerate(names)}
    numbers = {name: int(name) for name in names}
    if set(numbers.values()) != set(range(len(names))):
        raise FieldError(
            "site", max(numbers.values()), "sites are not numbered 0, 1, 2, ...", "leave no gap", file=path
        )
    return numbers


def _link(
    path: Path, number: int, pair: tuple[int, int], header: list[str], row: list[str], latency: int, bandwidth: int
) -> Link:
    """One row as a link between two sites."""

    def value(column: int, factors: Mapping[str, float], smallest: float, wanted: str) -> int:
        try:
            read = float(row[column]) * factors[header[column]]
        except ValueError:
            read = math.nan
        if not (math.isfinite(read) and read >= smallest):
            where = f"row {number}, {header[column]}"
            raise FieldError(where, row[column], f"is not {wanted}", "correct the cell", file=path)
        return round(read)

    return Link(
        source=pair[0],
        target=pair[1],
        transport=TRANSPORT,
        latency_ns=value(latency, NANOSECONDS, 0, "a finite time >= 0"),
        bandwidth_bytes_per_s=value(bandwidth, BYTES_PER_S, 1, "a bandwidth of 1 byte/s or more, or empty")
        if row[bandwidth]
        else None,
    )


def _both_directions(given: Mapping[tuple[int, int], Link]) -> tuple[dict[tuple[int, int], Link], list[Finding]]:
    """The links with every missing reverse filled in, and a finding that says which."""
    alone = [(a, b) for a, b in given if (b, a) not in given]
    both = dict(given) | {(b, a): given[a, b] for a, b in alone}
    if not alone:
        return both, []
    which = ", ".join(f"{b}->{a}" for a, b in alone)
    return both, [Finding(name="symmetry_assumed", detail=f"no row for {which}: taken as the other direction")]
