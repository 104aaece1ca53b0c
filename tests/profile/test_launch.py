"""The command line that starts ranks here, for both kinds of mpiexec, and what is said where there is none."""

import os
import sys
from pathlib import Path

import pytest

from crosspipe.errors import FieldError
from crosspipe.profile.launch import find_mpiexec, mpiexec_command


def fake_mpiexec(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "mpiexec"
    script.write_text(f"#!/bin/sh\necho '{version}'\n")
    script.chmod(0o755)
    return script


def test_hydra_is_kept_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_mpiexec(tmp_path, "HYDRA build details:")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert mpiexec_command(4, ["a.module", "--out", "x"]) == [
        *(str(script), "-launcher", "fork", "-hosts", "localhost", "-n", "4"),
        *(sys.executable, "-m", "a.module", "--out", "x"),
    ]


@pytest.mark.parametrize(("user", "extra"), [(0, ["--allow-run-as-root"]), (1000, [])])
def test_open_mpi_is_let_oversubscribe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, extra: list[str]
) -> None:
    script = fake_mpiexec(tmp_path, "mpiexec (Open MPI) 5.0.3")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert mpiexec_command(2, ["m"]) == [
        *(str(script), "--oversubscribe", *extra, "-n", "2"),
        *(sys.executable, "-m", "m"),
    ]


def test_path_is_searched_after_the_interpreters_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_mpiexec(tmp_path / "elsewhere", "HYDRA")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert find_mpiexec(str(on_path.parent)) == on_path
    beside = fake_mpiexec(tmp_path / "venv", "HYDRA")
    assert find_mpiexec(str(on_path.parent)) == beside


def test_no_mpiexec_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(FieldError, match=r"mpiexec = None: found neither in .* pip install mpich mpi4py"):
        find_mpiexec(str(tmp_path))


def test_no_ranks_are_refused() -> None:
    with pytest.raises(FieldError, match="ranks = 0: nothing to start"):
        mpiexec_command(0, ["m"])
