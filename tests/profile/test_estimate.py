"""Estimates: bytes against what the real modules hold here, times by hand; and the refusal of what does not fit."""

import time
from pathlib import Path

import msgspec
import pytest
import torch

from crosspipe.errors import FieldError
from crosspipe.model.config import ModelConfig, split_model
from crosspipe.problem import BlockCosts
from crosspipe.problem.layers import split_layers
from crosspipe.profile import fitting_memory
from crosspipe.profile.blocks import main, profile_blocks
from crosspipe.profile.estimate import estimate_blocks, sustained_flops_per_s
from crosspipe.profile.fitting_memory import check_fits, free_bytes, needed_bytes
from crosspipe.store import load

CONF = Path(__file__).parents[2] / "conf" / "model"
TINY = ModelConfig(
    vocabulary=61, hidden=32, intermediate=88, heads=4, kv_heads=2, layers=4, sequence=16, microbatch_size=2
)
GIB = 2**30


def config(name: str) -> ModelConfig:
    return msgspec.yaml.decode((CONF / f"{name}.yaml").read_bytes(), type=ModelConfig, strict=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", [False, True])
def test_bytes_without_the_memory_are_those_the_real_modules_hold(dtype: str, recompute: bool) -> None:
    model = msgspec.structs.replace(TINY, dtype=dtype)
    split = split_layers(4, 2, 2, traversal="wave")
    options = {"traversal": "wave", "recompute": recompute}
    real = profile_blocks(model, split, repetitions=6, budget_s=0.01, kernels=False, **options)
    counted = estimate_blocks(model, split, flops_per_s=1e12, **options)
    assert counted.workspace_bytes == real.workspace_bytes
    assert counted.parameter_bytes == real.parameter_bytes
    for row, other in zip(counted.blocks, real.blocks, strict=True):
        for cost, measured in zip(row, other, strict=True):
            for field in cost.__struct_fields__:
                if field.endswith("_bytes"):
                    assert getattr(cost, field) == getattr(measured, field), field


def test_times_are_flops_over_the_rate() -> None:
    """A layer of m70 by hand: 8 queries and 2 keys' worth of 8192 x 8192 / 8, three MLP matrices, masked scores."""
    costs = estimate_blocks(config("m70"), split_model(config("m70"), 8), flops_per_s=5e14, tensor_parallel=4)
    matrices = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    layer = 2 * 4096 * matrices + 2 * 4096**2 * 8192  # two products of the scores, half of them masked
    assert costs.blocks[1][0].forward_ns == pytest.approx(8 * layer / 2e15 * 1e9, abs=1)
    assert costs.blocks[1][0].forward_message_bytes == 64 * 2**20
    assert costs.origin == "estimated"
    assert costs.environment["flops_per_s"] == "5e+14 (given)"
    assert costs.spreads == costs.kernels == {}


def test_models_without_a_decoder_here_are_estimated_too() -> None:
    costs = estimate_blocks(config("mixtral_8x7b"), split_model(config("mixtral_8x7b"), 4), flops_per_s=1e14)
    assert costs.environment["bytes"] == "from the analytic model"
    assert costs.blocks[0][0].forward_message_bytes == 4096 * 4096 * 2


def test_this_machines_rate_is_that_of_a_product() -> None:
    before, factor, took = torch.get_num_threads(), torch.randn(700, 700), []
    stated = sustained_flops_per_s("float32", 1)
    assert torch.get_num_threads() == before
    torch.set_num_threads(1)
    for _ in range(9):
        start = time.monotonic()
        torch.mm(factor, factor)
        took.append(time.monotonic() - start)
    torch.set_num_threads(before)
    # a product of another size, timed here: a tenth to ten times, whatever else the machine does
    assert 0.1 < stated / (2 * 700**3 / sorted(took)[4]) < 10


def test_a_stage_needs_four_copies_of_its_parameters_and_a_microbatch() -> None:
    needs = needed_bytes(TINY, ((4,),), "ud")
    layer = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 88 + 2 * 32
    assert needs[0] > 4 * 4 * (4 * layer + 2 * 61 * 32 + 32)
    seventy = max(needed_bytes(config("m70"), split_model(config("m70"), 4), "ud"))
    assert 110 * GIB < seventy < 140 * GIB  # 70 B parameters / 4 in bf16 are 31 GiB, four times; and activations


def test_what_does_not_fit_is_refused_in_a_line_with_both_numbers_and_the_way_out() -> None:
    split = split_model(config("m70"), 4)
    with pytest.raises(FieldError) as refused:
        check_fits(config("m70"), split, "ud", 24 * GIB, "cpu")
    said = str(refused.value)
    assert said.startswith("model = 'm70': stage ")
    assert "cpu has 24.0 GiB free" in said
    assert "costs=analytic until=solve" in said
    assert "\n" not in said
    check_fits(config("m70"), split, "ud", 200 * GIB, "cpu")
    check_fits(config("m70"), split, "ud", None, "cpu")


def test_a_cgroup_may_allow_less_than_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting_memory, "CGROUP", tmp_path)
    whole = free_bytes()
    assert whole is not None
    (tmp_path / "memory.max").write_text(f"{3 * 2**20}\n")
    (tmp_path / "memory.current").write_text(f"{2**20}\n")
    assert free_bytes() == 2 * 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert (free_bytes() or 0) > 2 * 2**20


def test_the_command_estimates_what_it_refuses_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--model", str(CONF / "llama3_405b.yaml"), "--stages", "16", "--out", str(tmp_path)]
    assert main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*arguments, "--estimate", "True", "--tflop-per-s", "500", "--tensor-parallel", "8"]) == 0
    costs = load(tmp_path / "blocks.json", BlockCosts)
    assert (costs.origin, costs.environment["tensor_parallel"]) == ("estimated", "8")
    assert "estimated" in capsys.readouterr().out
