"""One blocks.json from those of many nodes: `python -m crosspipe.profile.nodes DIR` takes every DIR/blocks.NODE.json.

On a cluster, `srun --ntasks-per-node=1 python -m crosspipe.profile.blocks … --per-node true --out DIR` writes them, one
a node, or one a GPU with as many tasks as GPUs. What each node took is kept in `nodes.json`.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.problem import BlockCosts
from crosspipe.problem.nodes import NodeProfiles, costs_of_nodes
from crosspipe.store import load, save

PARTS = "blocks.*.json"


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """This process's node as the scheduler calls it, with its number there where a node has several tasks."""
    node = environ.get("SLURMD_NODENAME") or socket.gethostname()
    tasks = environ.get("SLURM_NTASKS_PER_NODE", "1")
    return node if tasks == "1" else f"{node}.{environ.get('SLURM_LOCALID', '0')}"


def read_nodes(directory: Path) -> dict[str, BlockCosts]:
    """The costs of every `blocks.NODE.json` in `directory`, by node; ArtifactError where there is none."""
    files = sorted(directory.glob(PARTS))
    if not files:
        raise ArtifactError(f"{directory}: holds no blocks.NODE.json; profile with --per-node true --out {directory}")
    return {path.name.removeprefix("blocks.").removesuffix(".json"): load(path, BlockCosts) for path in files}


def merge(directory: Path, node_of_stage: Sequence[str] | None = None) -> BlockCosts:
    """Puts the files of all nodes in `directory` into `blocks.json` (returned) and `nodes.json`, and removes them.

    Raises ArtifactError where there are none, FieldError where they do not belong together.
    """
    by_node = read_nodes(directory)
    costs = costs_of_nodes(by_node, node_of_stage)
    save(directory / "nodes.json", NodeProfiles(by_node=by_node))
    save(directory / "blocks.json", costs)
    for path in directory.glob(PARTS):
        path.unlink()
    return costs


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, 1 with `--strict` where a node is slow."""
    parser = argparse.ArgumentParser(prog="python -m crosspipe.profile.nodes", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--placement", metavar="NODE,…", help="the node of each stage (default: not known, the median)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a node is slow")
    options = parser.parse_args(arguments)
    try:
        placement = None if options.placement is None else options.placement.split(",")
        costs = merge(options.directory, placement)
        print(f"written: {options.directory / 'blocks.json'} ({costs.environment['nodes']})")
    except CrosspipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for finding in costs.findings:
        print(f"distrust: {finding.name}: {finding.detail}")
    return int(options.strict and bool(costs.findings))


if __name__ == "__main__":
    sys.exit(main())
