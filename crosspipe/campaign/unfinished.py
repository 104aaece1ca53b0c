"""What runs that were stopped leave for another life: `unfinished/KEY/` in the campaign's directory, until it is done.

Whoever takes a run up again in this campaign (its job in another life, or `retry`) goes on from there. What is in such
a folder is `crosspipe.execute.continuation`'s business.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from crosspipe.campaign.cluster import ClusterConfig
from crosspipe.execute.spec import RunConfig

_FOLDER = "unfinished"


def folder_of(campaign: Path, key: str) -> Path:
    """Where the run of that key is kept."""
    return campaign / _FOLDER / key


def is_kept(cluster: ClusterConfig, run: RunConfig) -> bool:
    """Whether runs are kept at all: on nodes, which may be taken away, and where a later start goes on as the first one
    would have. What changes during a run, its plan or its links, begins anew with the ranks."""
    changes = (run.swap_file, run.replan_above, run.bandwidth_trace)
    return cluster.on_nodes and cluster.keep_every_s is not None and all(change is None for change in changes)


def states(campaign: Path, references: Collection[str]) -> frozenset[Path]:
    """The training states there are of some runs: one that was not there before is progress."""
    folders = [folder_of(campaign, reference.partition("/")[2]) for reference in references]
    return frozenset(path for folder in folders for path in folder.glob("iteration-*"))


def forget(campaign: Path, key: str) -> None:
    """The run is done."""
    shutil.rmtree(folder_of(campaign, key), ignore_errors=True)
