"""Free memory under limits of control groups, on trees written by hand."""

from pathlib import Path

import pytest

from crosspipe.profile import fitting_memory
from crosspipe.profile.fitting_memory import free_bytes

MIB = 2**20


def group(folder: Path, limit: str, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root group has no limit, as the kernel's; the process is in a Slurm step's."""
    monkeypatch.setattr(fitting_memory, "CGROUP", tmp_path)
    monkeypatch.setattr(fitting_memory, "PROCESS", tmp_path)
    (tmp_path / "cgroup").write_text("1:name=systemd:/old\n0::/slurm/job_7/step_0\n")
    return tmp_path


def test_the_limit_of_the_own_group_or_of_one_above_counts(system: Path) -> None:
    group(system / "slurm/job_7/step_0", "max", MIB)
    assert (free_bytes() or 0) > 3 * MIB  # no limit anywhere
    group(system / "slurm/job_7", str(5 * MIB), 2 * MIB)
    assert free_bytes() == 3 * MIB
    group(system / "slurm/job_7/step_0", str(4 * MIB), 2 * MIB)
    assert free_bytes() == 2 * MIB


def test_in_a_container_the_root_is_the_own_group(system: Path) -> None:
    (system / "cgroup").write_text("0::/\n")
    group(system, str(3 * MIB), MIB)
    assert free_bytes() == 2 * MIB
