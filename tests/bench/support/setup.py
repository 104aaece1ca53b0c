"""What a measurement was made with: machine, versions, the sources that decide the result, workers and seed."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec

import crosspipe
from crosspipe.solver.certify import versions
from crosspipe.solver.portfolio import usable_cpus

DECIDING = ("problem/problem.py", "problem/traversal.py", "schedule/*.py", "solver/**/*.py")  # change a result
ASKING = ("solver/advice.py",)  # only asks for results


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """Results of equal set-ups may be compared; `sources` is a digest of the code that was measured."""

    cpu: str
    cores: int
    versions: dict[str, str]
    sources: str
    workers: int
    seed: int

    def __str__(self) -> str:
        libraries = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.cpu}, {self.cores} cores usable; {libraries}; sources {self.sources}; "
            f"workers {self.workers}, seed {self.seed}"
        )


def this_setup(workers: int, seed: int, deciding: Sequence[str] = DECIDING) -> Setup:
    """The set-up of this process; `deciding` are patterns of the sources that decide a result."""
    return Setup(
        cpu=_cpu(), cores=usable_cpus(), versions=versions(), sources=_sources(deciding), workers=workers, seed=seed
    )  # fmt: skip


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _sources(patterns: Sequence[str]) -> str:
    digest = hashlib.sha256()
    root = Path(crosspipe.__file__).parent
    deciding = {source for pattern in patterns for source in root.glob(pattern)} - {root / name for name in ASKING}
    for source in sorted(deciding):
        digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]
