"""The built wheel, used outside of the checkout: its configs, Hydra's launcher, and a sweep that is planned as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys
import crosspipe
from crosspipe.cli import main
code = main(["run", "schedule=1f1b,zbh1", "dry_run=true", "name=from-the-wheel"])
print("package:", crosspipe.__file__)
print("launchers:", [name for name in vars(sys.modules["hydra_plugins.crosspipe"]) if name.endswith("Launcher")])
sys.exit(code)
"""


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_wheel_plans_a_sweep_outside_of_the_checkout(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("crosspipe-*.whl")
    pip("install", "--no-deps", "--target", str(tmp_path / "installed"), str(wheel))
    (tmp_path / "here").mkdir()
    said = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert f"package: {tmp_path / 'installed' / 'crosspipe' / '__init__.py'}" in lines
    assert "launchers: ['CrosspipeLauncher']" in lines
    assert "2 points" in lines[0]
    roads = [line for line in lines if line.startswith(("1f1b: ", "zbh1: "))]
    assert len(roads) == 2
    assert roads[0].split()[1:3] == roads[1].split()[1:3]  # one profile of links and of blocks for both
    assert roads[0].split()[3] != roads[1].split()[3]  # a solve for each
    assert list((tmp_path / "here").iterdir()) == []
