"""What a GPU node gives CrossPipe, measured in minutes and shown as one table. `gpu_check.sh` runs it.

Each row says what was measured, what is wanted, and whether it holds; a part that fails is a row too, and the rest goes
on. With two GPUs or more a run of two stages over NCCL is part of it. Exit code 0: everything holds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from crosspipe.errors import CrosspipeError
from crosspipe.execute.cuda_device import CudaDevice
from crosspipe.execute.cuda_wire import ARRIVAL, HEADER, delay_errors
from crosspipe.execute.session import run_session
from crosspipe.execute.spec import Point, RunConfig, Session
from crosspipe.problem import Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.profile.blocks import profile_blocks
from crosspipe.solver import solve
from crosspipe.store import save

# two layers of an 8B Llama: what a stage of a real model does
WIDE = ModelConfig(
    vocabulary=256,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    layers=2,
    sequence=4096,
    dtype="bfloat16",
)
SMALL = ModelConfig(vocabulary=256, hidden=1024, intermediate=2816, heads=16, kv_heads=8, layers=4, sequence=512)
HOLDS = {True: "yes", False: "NO", None: "-"}


class Row(NamedTuple):
    """One line of the table; `holds` None: nothing is wanted of it."""

    what: str
    value: str
    wanted: str = ""
    holds: bool | None = None


def machine(device: torch.device) -> Iterator[Row]:
    """Device and versions."""
    memory = torch.cuda.get_device_properties(device).total_memory / 2**30
    yield Row("device", f"{torch.cuda.get_device_name(device)} x {torch.cuda.device_count()}, {memory:.0f} GiB")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    yield Row("torch, CUDA, NCCL", f"{torch.__version__}, {torch.version.cuda}, {nccl}")


def blocks(device: torch.device) -> Iterator[Row]:
    """Block times by CUDA events, and the allocator's bytes."""
    costs = profile_blocks(WIDE, ((0,), (2,), (0,)), device=device, repetitions=20, budget_s=40)
    median = {}
    for kind in "FDWB":
        spread = costs.spreads[f"s1.c0.{kind}"]
        median[kind] = spread.median
        interval = "" if spread.low is None else f" [{spread.low / 1e6:.2f}, {spread.high / 1e6:.2f}]"
        yield Row(f"{kind} of two 8B layers", f"{spread.median / 1e6:.2f} ms{interval}")
    ratio = (median["D"] + median["W"]) / median["B"]
    yield Row("(D + W) / B", f"{ratio:.3f}", "<= 1.05", ratio <= 1.05)
    cost = costs.blocks[1][0]
    share = cost.weight_grad_release_bytes / cost.forward_keep_bytes
    yield Row("activations after F", f"{cost.forward_keep_bytes / 2**20:.0f} MiB")
    yield Row("held after D, of those after F", f"{share:.1%}", "<= 80 %", share <= 0.8)


def delays(device: torch.device) -> Iterator[Row]:
    """How exact the device waits, by %globaltimer, idle and while another stream multiplies."""
    gpu = CudaDevice(device, time.monotonic_ns, longest_wait_ns=10**9)
    error = gpu.clock.error_ns / 1e6
    yield Row("device clock set to the host's", f"within {error:.3f} ms", "<= 0.1 ms", error <= 0.1)
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    for milliseconds in (1, 10, 100):
        for busy in (False, True):
            if busy:
                with gpu.beside("busy", behind=False):
                    for _ in range(20 * milliseconds):
                        a @ a
            late = delay_errors(gpu.clock, milliseconds * 1_000_000, 20)
            p50, p95 = np.percentile(late, [50, 95]) / 1e6
            holds = min(late) >= 0 and p50 <= 0.1 and p95 <= 0.5
            what = f"delay of {milliseconds} ms{', busy' if busy else ''}: error"
            yield Row(what, f"p50 {p50:.3f}, p95 {p95:.3f} ms", "<= 0.1, 0.5 ms", holds)
            gpu.synchronize()


def streams(device: torch.device) -> Iterator[Row]:
    """Whether two waits overlap, and what launching one costs the host."""
    gpu = CudaDevice(device, time.monotonic_ns, longest_wait_ns=10**9)
    header, posted = (torch.zeros(size, dtype=torch.int64, device=device) for size in (HEADER, 1))
    arrivals = torch.zeros(2, ARRIVAL, dtype=torch.int64, device=device)
    header[-1] = time.monotonic_ns() + 200_000_000
    gpu.synchronize()
    began = time.monotonic_ns()
    for row, name in enumerate(("a", "b")):
        with gpu.beside(name, behind=False):
            gpu.clock.arrive(header, posted, arrivals[row])
    launched = (time.monotonic_ns() - began) / 2e3
    gpu.synchronize()
    apart = abs(int(arrivals[0, 0]) - int(arrivals[1, 0])) / 1e6
    yield Row("two streams that wait begin", f"{apart:.3f} ms apart", "<= 50 ms", apart <= 50)
    yield Row("launch of a wait, on the host", f"{launched:.0f} us", "<= 100000 us", launched <= 100_000)


def run_of(stages: int) -> Callable[[torch.device], Iterator[Row]]:
    """A training run of that many stages over NCCL, its link emulated where there are two."""

    def check(device: torch.device) -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as folder:
            yield from _run(Path(folder), stages)

    check.__name__ = f"run of {stages} stage{'s' if stages > 1 else ''}"
    return check


def _run(folder: Path, stages: int) -> Iterator[Row]:
    problem = Problem.uniform(
        stages=stages,
        microbatches=8,
        sites=stages,
        forward_ms=2,
        input_grad_ms=2,
        weight_grad_ms=2,
        latency_ms=20,
        serialisation_ms=1,
    )
    point = Point(
        label="1f1b",
        problem=str(save(folder / "problem.json", problem)),
        schedule=str(save(folder / "schedule.json", solve(problem, "1f1b"))),
        out=str(folder / "out"),
    )
    session = Session(
        model=SMALL,
        layers=((SMALL.layers // stages,),) * stages,
        points=(point,),
        run=RunConfig(pace=None, transport="nccl", iterations=5, startup_timeout_s=90),
        directory=str(folder / "logs"),
    )
    (outcome,) = run_session(session)
    if outcome.failure is not None:
        raise outcome.failure
    record = outcome.record
    assert record is not None
    error = record.gradient_relative_error or 0.0
    name = f"{stages} GPU{'s' if stages > 1 else ''}"
    yield Row(f"{name}: gradients against one process", f"{error:.1e}", "<= 1e-5", error <= 1e-5)
    losses = [i.loss for i in record.iterations]
    yield Row(f"{name}: loss", f"{losses[0]:.3f} to {losses[-1]:.3f}", "falls", losses[-1] < losses[0])
    makespan = np.median([i.makespan_ns for i in record.measured]) / 1e6
    yield Row(f"{name}: makespan", f"{makespan:.1f} ms")
    if record.delay_error_ns:
        p50, p95 = (record.delay_error_ns[p] / 1e6 for p in ("p50", "p95"))
        holds = p50 <= 0.1 and p95 <= 0.5
        yield Row(f"{name}: error of a 20 ms link", f"p50 {p50:.3f}, p95 {p95:.3f} ms", "<= 0.1, 0.5 ms", holds)


def collect(checks: Sequence[Callable[[torch.device], Iterator[Row]]], device: torch.device) -> list[Row]:
    """The rows of all checks, in order; one that fails gives a last row that says how.

    Each is told as it comes: a check that hangs is ended from outside, and no table follows.
    """
    rows: list[Row] = []
    for check in checks:
        try:
            for row in check(device):
                rows.append(row)
                print(f"gpu_check: {row.what}: {row.value}", file=sys.stderr, flush=True)
        except (CrosspipeError, RuntimeError, OSError, KeyError) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            rows.append(Row(check.__name__, words, "to run", False))
    return rows


def render(rows: Sequence[Row]) -> str:
    """The table: columns as wide as their widest entry, long errors last so that they do not widen it."""
    cells = [("what", "measured", "wanted", "holds"), *((r.what, r.value, r.wanted, HOLDS[r.holds]) for r in rows)]
    widths = [max(len(row[i]) for row in cells if len(row[i]) <= 60) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def main() -> int:
    """Runs the checks; 1 where something does not hold, 2 where there is no GPU."""
    if not torch.cuda.is_available():
        print("gpu_check: torch sees no CUDA device here; run it on a node with a GPU and a torch that has CUDA")
        return 2
    checks = [machine, blocks, delays, streams, run_of(1)]
    if torch.cuda.device_count() > 1:
        checks.append(run_of(2))
    rows = collect(checks, torch.device("cuda", torch.cuda.current_device()))
    print(render(rows))
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
