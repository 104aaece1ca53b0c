"""What the doctor says of a machine that lacks things, and of this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from crosspipe.campaign import doctor
from crosspipe.campaign.doctor import Item


def by_name(items: list[Item]) -> dict[str, Item]:
    return {item.name: item for item in items}


def test_what_is_missing_comes_with_the_command_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # no mpiexec beside the interpreter either
    monkeypatch.setattr(doctor, "_ask", lambda command: None)  # nothing answers
    monkeypatch.setattr(doctor.importlib.metadata, "version", _without("submitit", "torch"))
    found = by_name(doctor.examine(tmp_path / "store"))
    assert {name for name, item in found.items() if item.state == "missing"} == {
        "crosspipe[slurm]", "crosspipe[train]", "MPI library", "mpiexec", "torch",
    }  # fmt: skip
    assert found["crosspipe[train]"].remedy == "pip install 'crosspipe[train]'"
    assert "mpich" in found["mpiexec"].detail + found["mpiexec"].remedy
    assert all(item.remedy for item in found.values() if item.state == "missing")
    assert found["Slurm"].state == "note"


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    item = doctor._store(tmp_path / "no" / "such" / "place" / "store")
    assert item.state == "missing"
    assert "store=DIR" in item.remedy
    assert doctor._store(tmp_path / "store").state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_an_mpi_wheel_under_slurm_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_ask", lambda command: "MPICH Version: 5.0")
    monkeypatch.setattr(doctor, "_installed", lambda name: name == "mpich")
    assert doctor._mpi().state == "note"
    assert "the cluster's own" in doctor._mpi().remedy


def test_a_machine_that_allows_no_real_time_priority_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosspipe.execute.priority.may_be_prompt", lambda: False)
    item = doctor._priority()
    assert (item.state, "limits.conf" in item.remedy) == ("note", True)


@pytest.mark.serial
def test_this_machine_can_run_the_demo(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "crosspipe.cli", "doctor", "--store", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout
    assert "starts a world of 2" in said.stdout


def _without(*absent: str):  # type: ignore[no-untyped-def]
    def version(name: str) -> str:
        if name in absent:
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    return version
