"""Which operators a (stage, chunk) spends its time in, and at what rate, by torch.profiler and FlopCounterMode.

Timed under the profiler, which costs some microseconds a call: shares and rates to see where time goes, not the
durations of the schedule. Attention's FLOPs are torch's, which count the masked half of the scores as well.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import flop_counter

from crosspipe.model.split_backward import SplitBackward
from crosspipe.problem.costs import Kernel
from crosspipe.profile.block_samples import StageData

MICROBATCHES = 3
LEAST_SHARE = 0.01  # operators below are summed up as "other"
OTHER = "other"


def kernel_table(stage: SplitBackward, data: StageData) -> tuple[Kernel, ...]:
    """Operators of F, D and W of one microbatch, by falling time; the stage must have run before."""
    return summarised(*operators(stage, data))


def operators(stage: SplitBackward, data: StageData) -> tuple[dict[str, tuple[float, int]], dict[str, int]]:
    """(ns, calls) and FLOPs of each operator in F, D and W of a microbatch; what is no operator is "other".

    Times are what an operator (or on a GPU: its kernels) takes itself, without those it calls; a third of three
    microbatches.
    """
    on_gpu = data.device.type == "cuda"
    with counted_flops() as counter:
        _microbatch(stage, data)
    flops = {
        str(operator).replace(".", "::", 1): int(count) for operator, count in counter.flop_counts["Global"].items()
    }
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler would say on stderr that it starts and stops
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        for _ in range(MICROBATCHES):
            _microbatch(stage, data)
        if on_gpu:
            torch.cuda.synchronize(data.device)
    took_us: dict[str, tuple[float, int]] = {}
    for event in profiler.key_averages():
        name = event.key if event.key.startswith("aten::") else OTHER
        if on_gpu and event.device_type != torch.autograd.DeviceType.CPU:
            continue  # the kernel itself: its operator has its time already
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        time_us, calls = took_us.get(name, (0.0, 0))
        took_us[name] = (time_us + own, calls + event.count)
    took_ns = {name: (1000 * time / MICROBATCHES, calls // MICROBATCHES) for name, (time, calls) in took_us.items()}
    return took_ns, flops


def summarised(took_ns: dict[str, tuple[float, int]], flops: dict[str, int]) -> tuple[Kernel, ...]:
    """The table from (ns, calls) and FLOPs per operator: what has less than a hundredth of the time is "other"."""
    total = sum(time for time, _ in took_ns.values())
    if not total > 0:
        return ()
    shown = {n: t for n, t in took_ns.items() if n != OTHER and t[0] >= LEAST_SHARE * total}
    rest = [t for n, t in took_ns.items() if n not in shown]
    rows = [(name, *shown[name], flops.get(name)) for name in sorted(shown, key=lambda n: -shown[n][0])]
    if rest:
        rows.append((OTHER, sum(time for time, _ in rest), sum(calls for _, calls in rest), None))
    return tuple(
        Kernel(operator=name, calls=calls, time_ns=round(time), share=time / total, flops=count)
        for name, time, calls, count in rows
    )


def counted_flops() -> flop_counter.FlopCounterMode:
    """FlopCounterMode that also knows the CPU's flash attention, with key/value heads shared by query heads."""

    def forward(
        query: tuple, key: tuple, value: tuple, *_args: object, out_shape: object = None, **_rest: object
    ) -> int:
        return flop_counter.sdpa_flop_count(query, query, (*query[:2], key[2], value[3]))

    def backward(
        gradient: tuple,
        query: tuple,
        key: tuple,
        value: tuple,
        *_args: object,
        out_shape: object = None,
        **_rest: object,
    ) -> int:
        return flop_counter.sdpa_backward_flop_count(gradient, query, query, (*query[:2], key[2], value[3]))

    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mapping = {attention: forward, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: backward}
    return flop_counter.FlopCounterMode(display=False, custom_mapping=mapping)


def _microbatch(stage: SplitBackward, data: StageData) -> Tensor | None:
    stage.forward(0, *data.received())
    gradient = stage.input_grad(0, data.gradient())
    stage.weight_grad(0)
    return gradient
