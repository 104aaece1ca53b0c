"""Whether the stages of a model fit where they are to be profiled: what they need, what there is. No torch needed.

A machine that pages itself to death, or a process that the kernel kills, tells its user nothing; a sentence with both
numbers and the way out does.
"""

from __future__ import annotations

from pathlib import Path

from crosspipe.errors import FieldError
from crosspipe.problem.analytic import analytic_costs
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split

COPIES = 4  # of the parameters: themselves, their gradients and AdamW's two moments
GIB = 2**30
CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")


def needed_bytes(config: ModelConfig, split: Split, traversal: str) -> tuple[int, ...]:
    """What profiling each stage takes at least: parameters, gradients, moments, and one microbatch's activations."""
    costs = analytic_costs(config, split, traversal=traversal, flops_per_s=1e12)
    return tuple(
        COPIES * parameters + max(cost.forward_keep_bytes + cost.input_grad_take_bytes for cost in row)
        for parameters, row in zip(costs.parameter_bytes, costs.blocks, strict=True)
    )


def free_bytes() -> int | None:
    """Host memory that this process can still get: the kernel's estimate, less where a cgroup allows less.

    Its own (version 2) and all above it count: Slurm limits the step's or the job's. None where the system
    does not say (not Linux).
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    try:
        listed = (PROCESS / "cgroup").read_text().splitlines()
    except OSError:
        return free
    own = Path(next((line.removeprefix("0::") for line in listed if line.startswith("0::")), "/"))
    return min([free, *(left for group in (own, *own.parents) if (left := _left_in(group)) is not None)])


def _left_in(group: Path) -> int | None:
    """What a cgroup still allows; None where it has no limit, as the root."""
    folder = CGROUP / group.relative_to("/")
    try:
        limit, used = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)


def check_fits(config: ModelConfig, split: Split, traversal: str, free: int | None, device: str) -> None:
    """FieldError where a stage needs more than `free` bytes of `device` (None: unknown, and nothing is refused)."""
    needs = needed_bytes(config, split, traversal)
    stage = max(range(len(needs)), key=needs.__getitem__)
    if free is not None and needs[stage] > free:
        raise FieldError(
            "model",
            config.name or "given",
            f"stage {stage} of {len(split)} takes {needs[stage] / GIB:.1f} GiB (parameters, gradients, moments, "
            f"a microbatch), {device} has {free / GIB:.1f} GiB free",
            "use more stages, a smaller model or a larger machine; or plan at counted ones: costs=analytic until=solve",
        )
