"""A machine with stand-in Slurm commands, and a hand to move their jobs with."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun")


class Standin:
    """What was submitted and asked, and what Slurm says from now on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "jobs.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def calls(self) -> Counter[str]:
        path = self.folder / "calls"
        return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()

    def say(self, **states: list[str]) -> None:
        """`say(j101=["RUNNING"], j103_2=["FAILED", "0:9"])`."""
        path = self.folder / "states.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        known |= {name.removeprefix("j"): state for name, state in states.items()}
        path.write_text(json.dumps(known))

    def order(self, name: str) -> None:
        (self.folder / name).touch()

    def tasks(self) -> list[str]:
        """Every task that some job makes, as often as it is."""
        return [task for job in self.jobs.values() for task in json.loads(Path(job["entry"]).read_text())["tasks"]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    binaries, folder = tmp_path / "bin", tmp_path / "slurm"
    binaries.mkdir()
    folder.mkdir()
    script = Path(__file__).parent / "standin_slurm.py"
    for name in COMMANDS:
        (binaries / name).symlink_to(script)
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_FOLDER", str(folder))
    return Standin(folder)
