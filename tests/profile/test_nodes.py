"""The command that makes one profile of several nodes'."""

from pathlib import Path

import pytest

from crosspipe.problem import BlockCosts
from crosspipe.problem.nodes import NodeProfiles
from crosspipe.profile import blocks
from crosspipe.profile.blocks import own_device
from crosspipe.profile.nodes import main, node_name
from crosspipe.store import load

MODEL = str(Path(__file__).parents[2] / "conf" / "model" / "tiny.yaml")


def test_a_node_is_named_as_the_scheduler_names_it() -> None:
    assert node_name({"SLURMD_NODENAME": "nid007"}) == "nid007"
    gpus = {"SLURMD_NODENAME": "nid007", "SLURM_NTASKS_PER_NODE": "4", "SLURM_LOCALID": "2"}
    assert node_name(gpus) == "nid007.2"


def test_profiles_of_two_nodes_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", MODEL, "--stages", "2", "--estimate", "true", "--per-node", "true", "--out", str(tmp_path)]
    for node, rate in (("a", "1"), ("b", "2")):
        monkeypatch.setenv("SLURMD_NODENAME", node)
        assert blocks.main([*options, "--tflop-per-s", rate]) == 0
    fast, slow = (load(tmp_path / f"blocks.{node}.json", BlockCosts).blocks for node in "ba")
    assert main([str(tmp_path), "--placement", "b,a"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks.json", "nodes.json"]
    assert load(tmp_path / "nodes.json", NodeProfiles).by_node["a"].blocks == slow
    assert load(tmp_path / "blocks.json", BlockCosts).blocks == (fast[0], slow[1])
    assert "stage 0 on b, stage 1 on a" in capsys.readouterr().out
    assert main([str(tmp_path / "empty")]) == 1
    assert "holds no blocks.NODE.json" in capsys.readouterr().err


def test_a_task_profiles_its_own_gpu() -> None:
    assert own_device({"SLURM_LOCALID": "3"}, 4) == "cuda:3"
    assert own_device({"SLURM_LOCALID": "3"}, 1) == "cuda:0"  # --gpus-per-task=1 shows a task its own only
    assert own_device({}, 4) == "cuda:0"
