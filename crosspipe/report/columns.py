"""The data dictionary: every column of the tidy results with its type, unit and meaning, in the order of the files.

`crosspipe.report.results` fills exactly these columns; the report prints them, so that a table read in a year still
explains itself. Times are ms, sizes MiB; a value that does not exist is null, never 0 or NaN.
"""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """One column: `kind` is text, integer or number; `unit` is empty for text and bare counts."""

    name: str
    kind: str
    unit: str
    meaning: str


POINT_COLUMNS = (
    Column("point", "text", "", "name of the point, unique in the campaign"),
    Column(
        "status",
        "text",
        "",
        "done, cached (the store had it), infeasible (does not fit the memory), failed, blocked (an input is missing) "
        "or waiting",
    ),
    Column("reason", "text", "", "why the point is infeasible, failed, blocked or waiting"),
    Column("schedule", "text", "", "name of the schedule, with its own options where they vary"),
    Column("delay", "text", "", "the delay across sites in words: (T_lat, T_bw)/T_F, or what the network was set to"),
    Column("setting", "text", "", "what else varies in the campaign; schedules of one setting and delay are compared"),
    Column("model", "text", "", "name of the model's config"),
    Column("network", "text", "", "name of the network's config"),
    Column("traversal", "text", "", "ud, loop or wave"),
    Column("stages", "integer", "", "pipeline stages"),
    Column("chunks", "integer", "", "model chunks per stage"),
    Column("sites", "integer", "", "sites the stages are spread over"),
    Column("microbatches", "integer", "", "microbatches of one iteration"),
    Column("latency_ratio", "number", "T_F", "T_lat/T_F: latency across sites over the forward reference"),
    Column("bandwidth_ratio", "number", "T_F", "T_bw/T_F: serialisation of one message across sites over T_F"),
    Column("latency_ms", "number", "ms", "largest latency of a boundary across sites, in the problem"),
    Column("serialisation_ms", "number", "ms", "largest serialisation of a message across sites, in the problem"),
    Column("forward_reference_ms", "number", "ms", "T_F: largest forward time per microbatch of any stage, as paced"),
    Column("pace", "number", "", "multiple of the profiled block times the run was paced at; null: not paced"),
    Column("origin", "text", "", "what the measured times are: emulated, shaped TCP or real link"),
    Column("transport", "text", "", "transport of the run"),
    Column("predicted_makespan_ms", "number", "ms", "simulated, from the first event to the last"),
    Column("predicted_iteration_ms", "number", "ms", "simulated makespan plus profiled gradient norm and optimizer"),
    Column("measured_iterations", "integer", "", "iterations measured after the warm-up"),
    Column("measured_makespan_ms", "number", "ms", "median of the measured makespans"),
    Column("measured_iteration_ms", "number", "ms", "median of the measured iteration times"),
    Column(
        "measured_iteration_low_ms",
        "number",
        "ms",
        "lower end of the 95 % interval of the median iteration time; null below 6 of them",
    ),
    Column(
        "measured_iteration_high_ms",
        "number",
        "ms",
        "upper end of the 95 % interval of the median iteration time; null below 6 of them",
    ),
    Column("measured_iteration_minimum_ms", "number", "ms", "smallest measured iteration time"),
    Column("makespan_error_percent", "number", "%", "measured median makespan against predicted"),
    Column("error_percent", "number", "%", "measured median iteration time against predicted"),
    Column("lower_bound_ms", "number", "ms", "best bound of the campaign: no schedule of this problem is shorter"),
    Column("gap_percent", "number", "%", "predicted makespan over the lower bound, minus 1; 0: proven optimal"),
    Column("proven_by", "text", "", "what proved the bound"),
    Column("best_static", "text", "", "fastest static schedule of the same setting that fits the memory and finished"),
    Column(
        "predicted_vs_best_static_percent",
        "number",
        "%",
        "predicted time against that of the best static schedule; negative: faster",
    ),
    Column(
        "measured_vs_best_static_percent",
        "number",
        "%",
        "measured median iteration time against that of the best static schedule",
    ),
    Column(
        "differs_from_best_static", "truth", "", "whether the 95 % intervals of both medians lie apart; null: unknown"
    ),
    Column("predicted_bubble_ratio", "number", "", "idle time over makespan, mean over the stages, simulated"),
    Column("predicted_peak_activation_mib", "number", "MiB", "activations of the fullest stage, by the schedule"),
    Column(
        "measured_peak_activation_mib", "number", "MiB", "activations of the fullest stage, along the order as executed"
    ),
    Column("activation_limit_mib", "number", "MiB", "smallest activation limit of a stage; null: no limit"),
    Column("planned_receive_mib", "number", "MiB", "receive buffers of the stage with most, beside the activations"),
    Column("late_blocks", "integer", "", "blocks that ended after their planned end, all measured iterations"),
    Column("late_messages", "integer", "", "messages whose real transfer was slower than the emulated link"),
    Column("largest_lateness_ms", "number", "ms", "by how much the latest block or message was late"),
    Column("raw_makespan_ms", "number", "ms", "median makespan by the wall clock, before anchoring"),
    Column(
        "delay_error_p50_ms", "number", "ms", "delay injected across sites against plan, median of the absolute error"
    ),
    Column(
        "delay_error_p95_ms",
        "number",
        "ms",
        "delay injected across sites against plan, 95th percentile of the absolute error",
    ),
    Column("gradient_relative_error", "number", "", "first gradients against one process; null: not compared"),
    Column("loss_first", "number", "", "loss of the first iteration, warm-up included"),
    Column("loss_last", "number", "", "loss of the last iteration"),
    Column("solver_method", "text", "", "how the schedule was found"),
    Column("solver_wall_s", "number", "s", "time it took to find the schedule"),
    Column("links_key", "text", "", "artifact of the link profile"),
    Column("blocks_key", "text", "", "artifact of the block profile"),
    Column("solve_key", "text", "", "artifact of the problem and schedule"),
    Column("run_key", "text", "", "artifact of the run"),
)

ITERATION_COLUMNS = (
    Column("point", "text", "", "name of the point"),
    Column("schedule", "text", "", "name of the schedule"),
    Column("iteration", "integer", "", "index of the iteration, warm-up counted"),
    Column("rank", "integer", "", "rank of the process; null: the iteration as a whole"),
    Column("stage", "integer", "", "stage of the rank; ranks of the first replica only"),
    Column("site", "integer", "", "site of the rank"),
    Column("warmup", "truth", "", "whether it belongs to the warm-up"),
    Column("makespan_ms", "number", "ms", "from the first event to the last"),
    Column("iteration_ms", "number", "ms", "makespan, gradient norm and optimizer step"),
    Column("gradient_norm_ms", "number", "ms", "time of the gradient norm"),
    Column("optimizer_step_ms", "number", "ms", "time of the optimizer step"),
    Column("raw_makespan_ms", "number", "ms", "makespan by the wall clock, before anchoring"),
    Column("busy_ms", "number", "ms", "of a rank (measured iterations): time in blocks, on the scale of the makespan"),
    Column("idle_ms", "number", "ms", "of a rank: the rest of the iteration's makespan"),
    Column("first_start_ms", "number", "ms", "of a rank: start of its first block, since the iteration's first event"),
    Column("last_end_ms", "number", "ms", "of a rank: end of its last block"),
    Column("peak_activation_mib", "number", "MiB", "of a rank: the most activations its order holds"),
    Column("late_blocks", "integer", "", "blocks that ended after their planned end"),
    Column("late_messages", "integer", "", "messages slower than the emulated link"),
    Column("largest_lateness_ms", "number", "ms", "by how much the latest block or message was late"),
    Column("total_lateness_ms", "number", "ms", "by how much all late blocks and messages were late, together"),
    Column("loss", "number", "", "training loss"),
    Column("gradient_norm", "number", "", "global gradient norm"),
)
