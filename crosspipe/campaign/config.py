"""The resolved configuration of one point, typed: what `conf/` holds after Hydra has composed it.

Hydra composes, this module understands: every section is a struct, and a wrong value becomes one line that names the
key. Sections that belong to a part of the package (`model`, `run`, ...) are handed to that part as they are.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from crosspipe.campaign.cluster import ClusterConfig, Count, Section
from crosspipe.campaign.costs import CostsConfig
from crosspipe.errors import FieldError, UsageError
from crosspipe.execute.spec import RunConfig
from crosspipe.execute.variation import read_bandwidth
from crosspipe.problem import Finding
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.spread import FEWEST
from crosspipe.profile.imported import read_link_csv

T = TypeVar("T")
Until = Literal["profile", "solve", "run"]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class PipelineConfig(Section, frozen=True, kw_only=True):
    """How the model is laid out: `stages` in all, split evenly and in order over `sites`.

    `layers` gives the decoder layers per stage (a list per stage where there are chunks; None: balanced). A stage may
    hold the activations of `memory_microbatches` microbatches (of the fullest stage; one limit for all), or
    `memory_mib` MiB; both None: no limit. `replicas` pipelines train side by side, each on `microbatches`; with `zero1`
    they share out the optimizer's state.
    """

    sites: int
    stages: int
    microbatches: int
    layers: tuple[int | tuple[int, ...], ...] | None = None
    memory_microbatches: float | None = None
    memory_mib: float | None = None
    weight_grad_pieces: int = 1
    replicas: int = 1
    zero1: bool = False

    def __post_init__(self) -> None:
        for name in ("sites", "stages", "microbatches", "replicas"):
            if getattr(self, name) < 1:
                raise UsageError(f"pipeline.{name}", getattr(self, name), "there is at least one", "use 1 or more")
        if self.stages % self.sites:
            fitting = ", ".join(str(n) for n in range(1, self.stages + 1) if self.stages % n == 0)
            raise UsageError(
                "pipeline.sites",
                self.sites,
                f"{self.stages} stages cannot be split evenly among {self.sites} sites",
                f"use one of {fitting} sites, or another number of stages",
            )
        if self.zero1 and self.replicas == 1:
            raise UsageError(
                "pipeline.zero1", True, "there is one replica", "use pipeline.replicas=2 or more, or false"
            )
        if self.memory_microbatches is not None and self.memory_mib is not None:
            raise UsageError(
                "pipeline.memory_mib",
                self.memory_mib,
                f"the limit is already {self.memory_microbatches} microbatches",
                "give memory_microbatches or memory_mib, and null for the other",
            )
        if self.memory_microbatches is not None and not 1 <= self.memory_microbatches < float("inf"):
            raise UsageError(
                "pipeline.memory_microbatches",
                self.memory_microbatches,
                "a stage must hold at least one microbatch",
                "use 1 or more, or null for no limit",
            )

    def site_of_stage(self) -> tuple[int, ...]:
        """The site of each stage."""
        return tuple(stage // (self.stages // self.sites) for stage in range(self.stages))


class NetworkConfig(Section, frozen=True, kw_only=True):
    """The link across sites: `measured`, or injected, given in ratios of T_F, in ms and Gbit/s, or by a table.

    `delay` is the pair [T_lat/T_F, T_bw/T_F]; `latency_ratio` and `bandwidth_ratio` set them one by one and win over
    it. A `bandwidth_gbit_per_s` of None beside a latency in ms means that bytes cost nothing. With `kind: table`,
    `file` is a CSV (`crosspipe.profile.imported`) of every pair of sites; `links` is what it says: source site, target
    site, latency in ns, bytes/s. `origin` says of a measured link what it is, where it is not a real one.

    `inside_ratio` injects the hops inside a site too, each T_F times it whatever its bytes, where the machine that runs
    stands for one with other links; None: they take what was measured.
    """

    name: str = ""
    kind: Literal["injected", "measured", "table"]
    file: str | None = None
    links: tuple[tuple[int, int, int, int | None], ...] | None = None
    delay: tuple[float, float] | None = None
    latency_ratio: float | None = None
    bandwidth_ratio: float | None = None
    latency_ms: float | None = None
    bandwidth_gbit_per_s: float | None = None
    inside_ratio: float | None = None
    tolerance: float = 0.02
    origin: Literal["shaped TCP", "real link"] | None = None

    def __post_init__(self) -> None:
        ratios = [n for n in ("delay", "latency_ratio", "bandwidth_ratio") if getattr(self, n) is not None]
        absolute = [n for n in ("latency_ms", "bandwidth_gbit_per_s") if getattr(self, n) is not None]
        given = ratios + absolute
        if self.kind == "measured" and self.inside_ratio is not None:
            given = [*given, "inside_ratio"]
        if self.kind == "measured" and given:
            self._refuse(given[0], "nothing is injected with network.kind=measured", "remove it, or inject")
        if self.kind != "measured" and self.origin:
            self._refuse("origin", "an injected delay is emulated", "remove it, or use network=wan")
        if self.kind == "table" and given:
            self._refuse(given[0], "the table says what is injected", "remove it, or use network=ratios")
        if self.kind == "table" and not self.file and self.links is None:
            self._refuse("file", "there is no table", "give network.file=links.csv (docs/measuring.md shows one)")
        if self.kind != "table" and (self.file or self.links is not None):
            self._refuse("file", f"no table is read with network.kind={self.kind}", "use network=csv")
        if ratios and absolute:
            self._refuse(absolute[0], f"network.{ratios[0]} is given too", "give ratios of T_F, or ms and Gbit/s")
        if self.kind == "injected" and not given:
            self._refuse("delay", "there is nothing to inject", "give network.delay=[1,0.25], or use network=measured")
        if absolute and self.latency_ms is None:
            self._refuse("latency_ms", "a bandwidth alone is no link", "give network.latency_ms too (0 is fine)")
        for name in ("latency_ratio", "bandwidth_ratio", "latency_ms", "inside_ratio", "tolerance"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                self._refuse(name, "is not a finite number >= 0", "use 0 or more")
        if self.delay is not None and not all(0 <= value < float("inf") for value in self.delay):
            self._refuse("delay", "holds something that is no finite number >= 0", "give [T_lat/T_F, T_bw/T_F]")
        if self.bandwidth_gbit_per_s is not None and not 0 < self.bandwidth_gbit_per_s < float("inf"):
            self._refuse("bandwidth_gbit_per_s", "is not a bandwidth", "use more than 0, or null for no byte cost")

    def _refuse(self, name: str, wrong: str, remedy: str) -> None:
        raise UsageError(f"network.{name}", getattr(self, name), wrong, remedy)

    def ratios(self) -> tuple[float, float] | None:
        """(T_lat/T_F, T_bw/T_F); None where the link is measured or given in ms and Gbit/s."""
        if self.kind != "injected" or self.latency_ms is not None:
            return None
        latency, bandwidth = self.delay or (0.0, 0.0)
        return (
            latency if self.latency_ratio is None else self.latency_ratio,
            bandwidth if self.bandwidth_ratio is None else self.bandwidth_ratio,
        )

    def canonical(self) -> NetworkConfig:
        """The same network, written one way: equal networks have equal keys, whatever they are called.

        A table is read, so that its content is in the key and not its place; raises ArtifactError or FieldError with
        the file where that cannot be done.
        """
        if self.file:
            lines = read_link_csv(self.file).links
            links = tuple((x.source, x.target, x.latency_ns, x.bandwidth_bytes_per_s) for x in lines)
            return msgspec.structs.replace(self, name="", file=None, links=links)
        return msgspec.structs.replace(self, name="", delay=self.ratios(), latency_ratio=None, bandwidth_ratio=None)


class ScheduleConfig(Section, frozen=True, kw_only=True):
    """The schedule by name; `chunks` model parts per stage where its traversal is a loop; `pieces` is n_sub.

    The name fixes the traversal; only `auto`, which searches within one, needs to be told `traversal`.
    """

    name: str
    traversal: str | None = None
    chunks: Count | None = None
    pieces: Count = 8


class SolverConfig(Section, frozen=True, kw_only=True):
    """How long and with what a search may work. `workers` None: the CPUs of the job."""

    time_limit_s: Positive
    workers: Count | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    points_per_job: Count = 12


class ProfileConfig(Section, frozen=True, kw_only=True):
    """Measurements: how old they may be (`max_age_days`, None: any age) and whether to make new ones.

    `links` and `blocks` are passed to the two profilers. With `every_node` the blocks are profiled on the node of every
    rank instead of on one.
    """

    max_age_days: Annotated[float, msgspec.Meta(ge=0)] | None
    refresh: bool = False
    every_node: bool = False
    links: dict[str, Any] = msgspec.field(default_factory=dict)
    blocks: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("links.fewest", FEWEST), ("blocks.repetitions", FEWEST)):
            value = self._given(name)
            if isinstance(value, int) and value < least:
                wrong = "too few for a 95 % interval of the median"
                raise UsageError(f"profile.{name}", value, wrong, f"use {least} or more")
        for name in ("links.time_budget", "links.time_limit", "links.width", "blocks.budget_s"):
            value = self._given(name)
            if isinstance(value, int | float) and not 0 < value < math.inf:
                raise UsageError(f"profile.{name}", value, "is not a finite number > 0", "use more than 0")

    def _given(self, name: str) -> Any:
        part, _, key = name.partition(".")
        return getattr(self, part).get(key)


class PointConfig(Section, frozen=True, kw_only=True):
    """One point: everything that `crosspipe run` was told, resolved.

    `wait` follows a campaign until it ends (None: on this machine yes, on a cluster no).
    """

    name: str
    store: str
    campaign_dir: str | None = None
    until: Until = "run"
    dry_run: bool = False
    strict: bool = False
    wait: bool | None = None
    model: ModelConfig
    costs: CostsConfig = CostsConfig()
    cluster: ClusterConfig
    network: NetworkConfig
    schedule: ScheduleConfig
    solver: SolverConfig
    pipeline: PipelineConfig
    profile: ProfileConfig
    run: RunConfig

    def __post_init__(self) -> None:
        for key in ("name", "store"):
            if not getattr(self, key).strip():
                raise UsageError(key, getattr(self, key), "is empty", f"give the campaign's {key}")


def typed(config: dict[str, Any], cls: type[T] = PointConfig) -> T:  # type: ignore[assignment]
    """Plain, resolved configuration as `cls`; UsageError naming the key for anything that does not fit."""
    try:
        return msgspec.convert(config, cls)
    except msgspec.ValidationError as error:
        raise _usage_error(error, config, cls) from None
    except UsageError:
        raise
    except FieldError as error:  # of a part's own struct: the user typed it
        raise UsageError(error.field, error.value, error.wrong, error.remedy) from None


def distrusted_table(config: PointConfig) -> tuple[Finding, ...]:
    """Reasons to distrust the table that the network is read from; none where there is no table.

    Raises UsageError for the first of them with `strict`, ArtifactError or FieldError where it cannot be read.
    """
    file = config.network.file
    found = () if file is None else read_link_csv(file).findings
    if found and config.strict:
        raise UsageError("network.file", file, f"{found[0].name}: {found[0].detail}", "correct it, or strict=false")
    return found


def check_possible(config: PointConfig) -> None:
    """UsageError or FieldError for what is well-formed but cannot run: a table of links that lacks one, a model
    without a decoder, a file that is not there."""
    if config.network.kind == "table":
        _check_table(config)
    if config.until == "run" and config.run.bandwidth_trace is not None:
        read_bandwidth(config.run.bandwidth_trace)
    if not config.costs.measured:
        if config.until == "run" and config.run.pace is None:
            raise UsageError(
                "until",
                "run",
                f"blocks last as costs={config.costs.name} says only where they are paced",
                "use run=paced (run.pace=1: just as long), or until=solve",
            )
        return
    if config.model.cost_only:
        raise UsageError(
            "model",
            config.model.name,
            "is known by cost only: the decoder here has no experts and no latent attention",
            "use a dense model such as demo, small or m8",
        )
    data = config.run.data
    if config.until == "run" and data is not None and not Path(data).exists():
        raise UsageError("run.data", data, "no such file or folder", "give text to train on, or null")


def _check_table(config: PointConfig) -> None:
    """UsageError where the table has no link between the sites of two stages in a row."""
    known = {(source, target) for source, target, *_ in config.network.canonical().links or ()}
    for here, there in pairwise(config.pipeline.site_of_stage()):
        for source, target in ((here, there), (there, here)):
            if source != target and (source, target) not in known:
                wrong = f"has no row for site {source} to site {target}"
                raise UsageError("network.file", config.network.file, wrong, "add it to the table")


def _usage_error(error: msgspec.ValidationError, config: dict[str, Any], cls: type[Any]) -> UsageError:
    inner = error.__cause__
    if isinstance(inner, UsageError):  # of a section's own: it names key and value
        return inner
    what, _, where = str(error).partition(" - at `")
    path = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", where)
    named = re.search(r"(unknown|missing required) field `(.*)`", what)
    value = _at(config, path, named[2] if named and named[1] == "unknown" else None)
    field = where.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", ".*") or "configuration"
    if isinstance(inner, FieldError):
        return UsageError(f"{field}.{inner.field}", inner.value, inner.wrong, inner.remedy)
    if named:
        field = named[2] if field == "configuration" else f"{field}.{named[2]}"
        if named[1] == "missing required":
            return UsageError(field, None, "is missing", "set this key")
        known = [f.encode_name for f in _kind(cls, path).fields]
        close = difflib.get_close_matches(named[2], known, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"remove it, or use one of {', '.join(known)}"
        return UsageError(field, value, "no such key", remedy)
    if "Invalid enum value" in what:
        choices = ", ".join(map(str, _kind(cls, path).values))
        return UsageError(field, value, "no such choice", f"use one of {choices}")
    return UsageError(field, value, what[0].lower() + what[1:], "correct the value")


def _at(value: Any, path: Sequence[tuple[str, str]], key: str | None) -> Any:
    """What stands at a path of msgspec's, and there under `key`; `[...]` leads to each of several."""
    if not path:
        return value.get(key) if key is not None and isinstance(value, dict) else value
    name, index = path[0]
    try:
        if index == "...":
            found = [_at(child, path[1:], key) for child in value.values()]
            return next((one for one in found if one is not None), None) if key is not None else found
        return _at(value[name] if name else value[int(index)], path[1:], key)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None


def _kind(cls: type[Any], path: Sequence[tuple[str, str]]) -> Any:
    """What msgspec knows of the section, or of the value, at a path of its own; of one that may be null, what else."""
    kind: Any = msgspec.inspect.type_info(cls)
    for name, _ in path:
        kind = next(f.type for f in kind.fields if f.encode_name == name) if name else kind.value_type
        if isinstance(kind, msgspec.inspect.UnionType):
            kind = next(one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType))
    return kind
