"""Small sessions of real processes, for the tests that start them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from crosspipe.execute.spec import Point, RunConfig, Session
from crosspipe.problem import Problem
from crosspipe.problem.architecture import ModelConfig
from crosspipe.schedule import Schedule
from crosspipe.store import save

MODEL = ModelConfig(vocabulary=256, hidden=32, intermediate=48, heads=2, kv_heads=1, layers=3, sequence=16)


def two_stages(*, milliseconds: float = 4) -> Problem:
    return Problem.uniform(
        stages=2,
        microbatches=4,
        sites=2,
        forward_ms=milliseconds,
        input_grad_ms=milliseconds,
        weight_grad_ms=milliseconds,
        latency_ms=milliseconds,
        serialisation_ms=milliseconds / 2,
    )


def session_of(
    directory: Path, schedules: dict[str, Schedule], problem: Problem, *, dtype: str = "float32", **run: object
) -> Session:
    """Points of a tiny model, its layers uneven on two stages; `run` are fields of the RunConfig."""
    save(directory / "problem.json", problem)
    points = []
    for label, schedule in schedules.items():
        file = save(directory / f"{label}.schedule.json", schedule)
        points.append(
            Point(
                label=label,
                problem=str(directory / "problem.json"),
                schedule=str(file),
                out=str(directory / "out" / label),
            )
        )
    settings = {"pace": 1.0, "iterations": 2, "warmup": 1, "timeout_s": 5.0, "learning_rate": 0.01, **run}
    return Session(
        model=msgspec.structs.replace(MODEL, dtype=dtype),
        layers={"ud": ((2,), (1,)), "loop": ((1, 1), (1, 0)), "wave": ((1, 0), (1, 1))}[problem.traversal],
        points=tuple(points),
        run=RunConfig(**settings),
        gradient_norm_ns=(1_000_000, 2_000_000),
        optimizer_step_ns=(4_000_000, 3_000_000),
        directory=str(directory / "logs"),
    )


def of_our_ranks(directory: Path) -> list[int]:
    """Processes whose command line names a file of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(directory).encode() in command and b"crosspipe.execute.worker" in command:
            found.append(int(entry.name))
    return found


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
