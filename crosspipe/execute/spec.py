"""What a run session is told: `RunConfig` (the `run` section of a configuration), the points, and the session's file.

Plain data, without torch: whoever plans a run needs no more. A *point* is one schedule to execute; points that share
the model, its split and the run configuration share one session, that is one start of the ranks.
"""

from __future__ import annotations

import math

import msgspec

from crosspipe.errors import FieldError, UsageError
from crosspipe.execute.plan import Format
from crosspipe.problem import Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split, check_split

RECORD_FILE, ANCHORED_FILE, RAW_FILE = "run.json", "timelines.parquet", "raw_timelines.parquet"
COMPARISON_FILE = "comparison.parquet"
VOCABULARY = 256  # a token is a byte
PARENT = "CROSSPIPE_PARENT"  # environment of a rank: the process it must not outlive


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How schedules are executed: `conf/run/*.yaml`.

    `pace`: multiple of the profiled block times that each block is made to last, so that a small machine can stand for
    the cluster; None: as fast as it goes. `iterations` are measured after `warmup` more. `data`: file or folder of text
    (None: the Python standard library's sources). `post_ahead_ms`: how long before the predicted time of its send a
    receive is posted (None: only when it is used). `check_gradients` compares the first iteration's gradients with one
    process. `threads`: how many torch computes with, in each rank. `jitter_ms`: mean of the random time added to the
    latency of emulated messages. `bandwidth_trace`: CSV file that varies the bandwidth of emulated wires
    (`crosspipe.execute.variation`). `swap_file`: a Plan or Schedule that appears there takes over between two
    iterations. `replan_above`: where messages across sites take another time than planned, by more than this share of
    it, the schedule is searched again for what they take, and swapped (None: never). `checkpoint_dir`: where the
    training state is kept every `checkpoint_every` iterations and at the end, a folder per point (None: nowhere);
    `resume` goes on from the newest there, if there is one. `timeout_s` bounds every wait for another rank,
    `startup_timeout_s` the time until the first iteration.
    """

    pace: float | None
    iterations: int = 10
    warmup: int = 2
    seed: int = 0
    data: str | None = None
    learning_rate: float = 3e-4
    clip_norm: float | None = 1.0
    transport: str = "gloo"
    threads: int = 1
    post_ahead_ms: float | None = 0.0
    check_gradients: bool = True
    jitter_ms: float = 0.0
    bandwidth_trace: str | None = None
    swap_file: str | None = None
    replan_above: float | None = None
    checkpoint_dir: str | None = None
    checkpoint_every: int = 100
    resume: bool = False
    points_per_job: int = 4
    timeout_s: float = 60.0
    startup_timeout_s: float = 180.0

    def __post_init__(self) -> None:
        for name in ("pace", "learning_rate", "clip_norm", "replan_above", "timeout_s", "startup_timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                remedy = "use more than 0" + (", or null" if name in ("pace", "clip_norm", "replan_above") else "")
                raise UsageError(f"run.{name}", value, "is not a finite number > 0", remedy)
        for name, least in (
            ("iterations", 1),
            ("warmup", 0),
            ("threads", 1),
            ("points_per_job", 1),
            ("checkpoint_every", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"run.{name}", getattr(self, name), f"is below {least}", f"use {least} or more")
        if self.transport not in ("gloo", "nccl"):
            remedy = "use gloo, or nccl on GPUs"
            raise UsageError("run.transport", self.transport, "no such transport in this version", remedy)
        if self.transport == "nccl" and self.pace is not None:
            raise UsageError("run.pace", self.pace, "blocks on GPUs are not paced", "use run=real, or run.pace=null")
        if self.transport == "nccl" and (self.jitter_ms or self.bandwidth_trace):
            name = "jitter_ms" if self.jitter_ms else "bandwidth_trace"
            raise UsageError(f"run.{name}", getattr(self, name), "links emulated on GPUs are constant", "use gloo")
        if not 0 <= self.jitter_ms < math.inf:
            raise UsageError("run.jitter_ms", self.jitter_ms, "is not a finite time >= 0", "use 0 for none")
        if self.replan_above is not None and self.swap_file is not None:
            raise UsageError("run.replan_above", self.replan_above, "run.swap_file is given too", "give one of them")
        if self.resume and self.checkpoint_dir is None:
            raise UsageError("run.resume", True, "nothing says where the checkpoints are", "give run.checkpoint_dir")
        if self.post_ahead_ms is not None and not 0 <= self.post_ahead_ms < math.inf:
            raise UsageError("run.post_ahead_ms", self.post_ahead_ms, "is not a finite time >= 0", "use 0, or null")

    @property
    def post_ahead_ns(self) -> int | None:
        """`post_ahead_ms` in ns."""
        return None if self.post_ahead_ms is None else round(self.post_ahead_ms * 1e6)


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One schedule to execute: its files, and the directory that gets run.json and the timelines.

    `plan` is the file of its Plan, written by whoever started the ranks (None: every rank lowers the schedule itself).
    `kept` is a folder, seen by all ranks, from which the point goes on where an earlier start of it was ended, and that
    gets what another would need (None: it begins with its first iteration); see `crosspipe.execute.continuation`.
    """

    label: str
    problem: str
    schedule: str
    out: str
    plan: str | None = None
    kept: str | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="run_session"):
    """One start of the ranks and the points they execute one after the other; rank r is stage r of replica 0.

    `layers` is the split of the model (`crosspipe.problem.layers`). `gradient_norm_ns` and `optimizer_step_ns` hold a
    value per stage, at the run's pace (empty: 0). `emulate` injects the Problems' hops; `origin` labels the timelines
    ("emulated", "shaped TCP", "real link"). `directory` gets logs and what ranks tell whoever watches them.
    `rendezvous` is where ranks find each other: a torch.distributed init method, filled in by the launcher. A point's
    training state is put into its `kept` folder every `keep_every_s` at most. With
    `replicas` of the pipeline, rank = replica * stages + stage, and a Problem's hops across sites carry all replicas'
    bytes.
    """

    schema: int = 1
    model: ModelConfig
    layers: Split
    points: tuple[Point, ...]
    run: RunConfig
    gradient_norm_ns: tuple[int, ...] = ()
    optimizer_step_ns: tuple[int, ...] = ()
    emulate: bool = True
    origin: str = "emulated"
    directory: str
    rendezvous: str = "env://"
    replicas: int = 1
    keep_every_s: float = 60.0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise FieldError("replicas", self.replicas, "is below 1", "use 1 or more")
        if self.replicas > 1 and self.run.replan_above is not None:
            wrong = "what a message of one replica takes says nothing of all replicas' bytes"
            raise FieldError("run.replan_above", self.run.replan_above, wrong, "use null with replicas")

    @property
    def ranks(self) -> int:
        """Number of ranks: one per stage and replica."""
        return len(self.layers) * self.replicas

    @property
    def keeps_time(self) -> bool:
        """Whether ranks on CPUs wait for moments that are known before: ends of paced blocks, emulated arrivals."""
        return self.run.transport == "gloo" and (self.run.pace is not None or self.emulate)

    @property
    def message_format(self) -> Format:
        """Every message is the activations (or their gradient) of one microbatch between two layers."""
        model = self.model
        shape = (model.microbatch_size, model.sequence, model.hidden)
        return Format(shape, model.dtype, model.tokens * model.hidden * model.dtype_bytes)

    def check(self, problem: Problem) -> None:
        """Raises FieldError where model, split and a point's Problem do not belong together."""
        shape = (len(self.layers), len(self.layers[0]))
        if shape != (problem.stages, problem.chunks):
            raise FieldError(
                "layers",
                f"{shape[0]} stages x {shape[1]} chunks",
                f"the problem has {problem.stages} x {problem.chunks}",
                "run points of one split in one session",
            )
        check_split(self.model, self.layers, problem.traversal)
        if self.model.vocabulary < VOCABULARY:
            raise FieldError(
                "model.vocabulary", self.model.vocabulary, "tokens are bytes", f"use {VOCABULARY} or more for a run"
            )
        if (self.replicas > 1) != bool(problem.data_parallel):
            raise FieldError(
                "replicas",
                self.replicas,
                f"the problem has {'' if problem.data_parallel else 'no '}gradient reductions",
                "give data_parallel exactly where there are replicas",
            )
        gathers = [replica.gather is not None for row in problem.data_parallel for replica in row]
        if any(gathers) and not all(gathers):
            raise FieldError(
                "data_parallel",
                f"{sum(gathers)} of {len(gathers)} with a gather",
                "ZeRO-1 is for the whole model or not at all",
                "give every stage and chunk its gather, or none",
            )
