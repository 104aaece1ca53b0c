"""The table of slurm/gpu_check.py without a GPU: how rows are shown, what an error becomes, what it says then."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SLURM = Path(__file__).parents[2] / "slurm"


@pytest.fixture(scope="module")
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", SLURM / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_check"]


def test_rows_stand_in_columns(gpu_check):
    rows = [
        gpu_check.Row("device", "H200 x 1"),
        gpu_check.Row("delay of 1 ms: error", "p50 0.020 ms", "<= 0.1", True),
        gpu_check.Row("streams", "E" * 70, "to run", False),
    ]
    assert gpu_check.render(rows).splitlines() == [
        "what                  measured      wanted  holds",
        "--------------------  ------------  ------  -----",
        "device                H200 x 1              -",
        "delay of 1 ms: error  p50 0.020 ms  <= 0.1  yes",
        f"streams               {'E' * 70}  to run  NO",
    ]


def test_a_check_that_fails_is_a_row_and_the_rest_goes_on(gpu_check, capsys):
    def broken(device):
        yield gpu_check.Row("first", "1")
        raise RuntimeError("CUDA error: no kernel image\nmore")

    def fine(device):
        yield gpu_check.Row("last", "2", "", True)

    rows = gpu_check.collect([broken, fine], torch.device("cpu"))
    assert rows == [("first", "1", "", None), ("broken", "CUDA error: no kernel image", "to run", False),
                    ("last", "2", "", True)]  # fmt: skip
    assert capsys.readouterr().err.splitlines() == ["gpu_check: first: 1", "gpu_check: last: 2"]


def test_the_exit_code_says_whether_all_holds(gpu_check, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    asked = []
    for holds, code in ((True, 0), (None, 0), (False, 1)):

        def collect(checks, device, holds=holds):
            asked.append([check.__name__ for check in checks])
            return [gpu_check.Row("x", "1", "", holds)]

        monkeypatch.setattr(gpu_check, "collect", collect)
        assert gpu_check.main() == code
    assert asked[0] == ["machine", "blocks", "delays", "streams", "run of 1 stage", "run of 2 stages"]
    assert capsys.readouterr().out.startswith("what")


def test_without_a_gpu_the_script_says_so_in_one_line():
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("SLURM_SUBMIT_DIR", None)
    done = subprocess.run(
        ["bash", str(SLURM / "gpu_check.sh")], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines() == [
        "gpu_check: torch sees no CUDA device here; run it on a node with a GPU and a torch that has CUDA"
    ]
