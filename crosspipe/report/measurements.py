"""The measurements behind a campaign, and those of the same thing that the store kept from before.

Points share profiles: each is read here once, with what was measured on every node and with its earlier epochs. What an
earlier epoch cannot tell any more (its file is damaged) is said, and costs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.problem.nodes import NodeProfiles
from crosspipe.report.results import Results
from crosspipe.store.files import load
from crosspipe.store.history import earlier
from crosspipe.store.store import Store

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Epoch(Generic[T]):
    """One measurement: its artifact (`stage/key`), when it was finished (s, UTC), what it found."""

    reference: str
    finished_at_s: float
    found: T

    @property
    def short(self) -> str:
        """The artifact in a few letters."""
        stage, _, key = self.reference.partition("/")
        return f"{stage}/{key[:12]}"


@dataclass(frozen=True)
class Profile(Generic[T]):
    """A measurement of the campaign, `now`, and the `earlier` ones of the same thing, oldest first.

    `folder` holds its other files; `unreadable` says what is left out, and why.
    """

    now: Epoch[T]
    earlier: tuple[Epoch[T], ...]
    folder: Path
    unreadable: tuple[str, ...]

    @property
    def epochs(self) -> tuple[Epoch[T], ...]:
        """All of them, oldest first."""
        return (*self.earlier, self.now)


@dataclass(frozen=True)
class Measurements:
    """Every link and block profile of a campaign once; `nodes` by block profile where every node was profiled."""

    links: tuple[Profile[LinkTable], ...]
    blocks: tuple[Profile[BlockCosts], ...]
    nodes: dict[str, NodeProfiles]


def read_measurements(results: Results) -> Measurements:
    """The measurements of a campaign whose results were read."""
    store, artifacts = Store(results.store_root), list(results.artifacts.values())
    links = _profiles(store, "links", LinkTable, ((a.point.keys.get("links"), a.links) for a in artifacts))
    blocks = _profiles(store, "blocks", BlockCosts, ((a.point.keys.get("blocks"), a.blocks) for a in artifacts))
    nodes, told = {}, []
    for profile in blocks:
        try:
            if (profile.folder / "nodes.json").exists():
                nodes[profile.now.reference] = load(profile.folder / "nodes.json", NodeProfiles)
            told.append(profile)
        except (ArtifactError, FieldError) as error:
            told.append(replace(profile, unreadable=(*profile.unreadable, str(error))))
    return Measurements(links, tuple(told), nodes)


def _profiles(
    store: Store, stage: str, cls: type[T], found: Iterable[tuple[str | None, T | None]]
) -> tuple[Profile[T], ...]:
    """A profile for each key under which something was found."""
    once = {key: value for key, value in found if key is not None and value is not None}
    profiles = []
    for key, value in once.items():
        reference = f"{stage}/{key}"
        before, unreadable = _earlier(store, reference, cls)
        now = Epoch(reference, _finished_at_s(store, reference), value)
        profiles.append(Profile(now, before, store.directory(reference), unreadable))
    return tuple(profiles)


def _earlier(store: Store, reference: str, cls: type[T]) -> tuple[tuple[Epoch[T], ...], tuple[str, ...]]:
    """The earlier measurements that can be read, and what is wrong with the others."""
    try:
        references = earlier(store, reference)
    except (ArtifactError, FieldError) as error:
        return (), (str(error),)
    epochs, unreadable = [], []
    for other in references:
        try:
            found = load(store.directory(other) / f"{reference.partition('/')[0]}.json", cls)
            epochs.append(Epoch(other, _finished_at_s(store, other), found))
        except (ArtifactError, FieldError) as error:
            unreadable.append(str(error))
    return tuple(epochs), tuple(unreadable)


def _finished_at_s(store: Store, reference: str) -> float:
    done = store.done(reference)
    return 0.0 if done is None else done.finished_at_s
