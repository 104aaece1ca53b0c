"""What a run leaves behind: one RunRecord (JSON); its measured Timelines are Parquet (`crosspipe.store.timelines`)."""

from __future__ import annotations

import msgspec

from crosspipe.problem import Finding


class Iteration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training iteration. Times in ns; `makespan_ns` first event to last, `iteration_ns` with norm and optimizer.

    With pacing these are anchored times; `raw_makespan_ns` is what the wall clock said, `resimulated_makespan_ns` what
    the performance model says of the raw durations. A block or message is late when it ended after its anchor.
    `excess_ns` says where the time beyond the prediction went, along the critical path: late_blocks, late_messages,
    late_posts, waiting, and other_path (mostly negative: that path is shorter in the prediction than its longest).
    """

    index: int
    warmup: bool
    loss: float
    gradient_norm: float
    makespan_ns: int
    iteration_ns: int
    gradient_norm_ns: int
    optimizer_step_ns: int
    raw_makespan_ns: int
    late_blocks: int = 0
    late_messages: int = 0
    largest_lateness_ns: int = 0
    total_lateness_ns: int = 0
    resimulated_makespan_ns: int | None = None
    excess_ns: dict[str, int] = {}


class Swap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan that was offered before `iteration`: taken by all ranks from then on, or refused by all with a reason."""

    iteration: int
    schedule_name: str
    predicted_makespan_ns: int
    refused: str | None = None


class Rank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one rank ran, and its clock against rank 0's: offset with its largest possible error, and drift."""

    rank: int
    stage: int
    site: int
    host: str
    pid: int
    device: str
    clock_offset_ns: int = 0
    clock_error_ns: int = 0
    clock_drift_ppm: float = 0.0


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="run_record"):
    """A schedule, executed: what was predicted, what was measured, how far the emulation held.

    `origin` is "emulated" (delay injected from the alpha-beta model), "shaped TCP" or "real link". `pace` is the
    multiple of the profiled block times the run was paced at (None: not paced). `predicted_iteration_ns` is the
    predicted makespan plus the profiled gradient norm and optimizer step, at the same pace.
    `gradient_relative_error` compares the first iteration's gradients with one process (None: not compared).
    `delay_error_ns` holds percentiles ("p50", "p95", "max") of |arrival as waited for - arrival as planned|.
    """

    schema: int = 1
    problem_digest: str
    schedule_name: str
    origin: str
    transport: str
    pace: float | None
    predicted_makespan_ns: int
    predicted_iteration_ns: int
    iterations: tuple[Iteration, ...]
    peak_activation_bytes: tuple[int, ...] = ()  # per stage, measured
    planned_receive_bytes: tuple[int, ...] = ()  # per stage, beside the activations
    gradient_relative_error: float | None = None
    delay_error_ns: dict[str, int] = {}
    messages_sent: int = 0
    swaps: tuple[Swap, ...] = ()
    findings: tuple[Finding, ...] = ()
    ranks: tuple[Rank, ...] = ()
    environment: dict[str, str] = {}

    @property
    def measured(self) -> tuple[Iteration, ...]:
        """Iterations after the warm-up."""
        return tuple(i for i in self.iterations if not i.warmup)
