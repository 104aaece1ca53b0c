"""Tasks to job arrays: one array per stage and set of resources, split where the site's limit asks for it.

An edge between arrays means *ended* (`afterany`), never *succeeded*: a task looks for its inputs itself, so nothing
depends on how a site treats jobs whose dependency has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from crosspipe.campaign.cluster import Resources
from crosspipe.campaign.tasks import Task


class Array(NamedTuple):
    """Tasks that are submitted together. `after` are earlier arrays, by their place in the list."""

    stage: str
    tasks: tuple[Task, ...]
    resources: Resources
    after: tuple[int, ...]


def arrays(tasks: Sequence[Task], largest: int) -> tuple[Array, ...]:
    """`tasks` as arrays of at most `largest`, in an order in which each comes after those it waits for.

    A bound on the jobs at once (`at_once`) is shared out where an array must be split; parts beyond it wait for others.
    """
    groups: dict[bytes, list[Task]] = {}
    for task in tasks:
        same = msgspec.json.encode((task.stage, task.resources), order="sorted")
        groups.setdefault(same, []).append(task)
    found: list[Array] = []
    place: dict[str, int] = {}
    for group in groups.values():
        resources = group[0].resources
        parts = [group[start : start + largest] for start in range(0, len(group), largest)]
        together = min(len(parts), resources.at_once or len(parts))
        if resources.at_once is not None:
            resources = msgspec.structs.replace(resources, at_once=resources.at_once // together)
        first = len(found)
        for number, part in enumerate(parts):
            after = {place[name] for task in part for name in task.after if name in place}
            after |= {first + number - together} if number >= together else set()
            place |= {task.id: len(found) for task in part}
            found.append(Array(group[0].stage, tuple(part), resources, tuple(sorted(after))))
    return tuple(found)
