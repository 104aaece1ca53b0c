"""The analytic costs against torch's own counters, torch's real memory, published model sizes and hand arithmetic."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosspipe.errors import FieldError
from crosspipe.model import SplitBackward, build_stage
from crosspipe.problem.analytic import analytic_costs, message_bytes, stage_work
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import split_layers
from crosspipe.problem.work import layer_work, model_work
from crosspipe.profile.block_samples import StageData
from crosspipe.profile.blocks import profile_blocks
from crosspipe.profile.kernels import counted_flops

CONF = Path(__file__).parents[2] / "conf" / "model"
SMALL = ModelConfig(
    vocabulary=61, hidden=32, intermediate=88, heads=4, kv_heads=2, layers=4, sequence=16, microbatch_size=2
)


def load(name: str, **change) -> ModelConfig:
    config = msgspec.yaml.decode((CONF / f"{name}.yaml").read_bytes(), type=ModelConfig)
    return msgspec.structs.replace(config, **change)


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        # counts of the published checkpoints
        ("m8", 32, 8_030_261_248),  # Llama 3 8B
        ("m70", 80, 70_553_706_496),  # Llama 3 70B
        ("llama3_405b", 126, 405_853_388_800),
        ("mixtral_8x7b", 32, 46_702_792_704),
        ("deepseek_v3", 61, 671_026_419_200 - 58 * 256),  # the checkpoint's router biases are not trained by gradient
    ],
)
def test_parameters_of_published_models(name: str, layers: int, parameters: int) -> None:
    assert model_work(load(name, layers=layers)).parameters == parameters


@pytest.mark.parametrize(("name", "billions"), [("mixtral_8x7b", 12.9), ("deepseek_v3", 37)])
def test_active_parameters_of_published_models(name: str, billions: float) -> None:
    assert model_work(load(name)).active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_the_papers_messages() -> None:
    assert message_bytes(load("m8")) == 32 * 2**20
    assert message_bytes(load("m70")) == 64 * 2**20


def test_one_m8_layer_by_hand() -> None:
    work = layer_work(load("m8"), 0)
    matrices = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    scores = 4 * 4096 * 4096 * 4096  # Q K^T and P V: 2 products of 2 * tokens * tokens * hidden
    assert work.forward_flops == 2 * 4096 * matrices + scores // 2
    assert work.weight_grad_flops == 2 * 4096 * matrices
    assert work.input_grad_flops == 2 * 4096 * matrices + scores // 2 * 5 // 2


def test_mixture_of_experts_by_hand() -> None:
    """Mixtral: a token pays for the router and two experts of eight."""
    config = load("mixtral_8x7b")
    dense = layer_work(msgspec.structs.replace(config, experts=None), 0)
    sparse = layer_work(config, 0)
    router, expert = 4096 * 8, 3 * 4096 * 14336
    assert sparse.weight_grad_flops - dense.weight_grad_flops == 2 * 4096 * (router + expert)
    assert sparse.parameters - dense.parameters == router + 7 * expert
    deep = load("deepseek_v3")
    assert layer_work(deep, 2).parameters < layer_work(deep, 3).parameters / 10  # the first three layers are dense


STAGES = [("ud", ((1,), (2,), (1,))), ("wave", ((1, 0), (2, 1))), ("ud", ((4,),))]


@pytest.mark.parametrize(("traversal", "split"), STAGES)
def test_flops_are_torchs_for_every_block(traversal, split) -> None:
    """Matrix products exact; attention by torch's own formulas, which count masked scores too."""
    for stage in range(len(split)):
        for chunk in range(len(split[0])):
            module = build_stage(SMALL, split, stage, chunk, traversal=traversal)
            wrapped, data = SplitBackward(module), StageData(module, 0)
            found = []
            for call in (
                lambda wrapped=wrapped, data=data: wrapped.forward(0, *data.received()),
                lambda wrapped=wrapped, data=data: wrapped.input_grad(0, data.gradient()),
                lambda wrapped=wrapped: wrapped.weight_grad(0),
            ):
                with counted_flops() as counted:
                    call()
                found.append(counted.get_total_flops())
            work = stage_work(SMALL, split, traversal, stage, chunk, skip_masked=False)
            assert found == [work.forward_flops, work.input_grad_flops, work.weight_grad_flops]


@settings(deadline=None, max_examples=12)
@given(
    kv_heads=st.sampled_from([1, 2, 4]),
    head_width=st.sampled_from([4, 8, None]),
    intermediate=st.integers(1, 40),
    sequence=st.integers(1, 24),
    microbatch_size=st.integers(1, 3),
    recompute=st.booleans(),
)
def test_flops_are_torchs_for_any_shape(recompute: bool, **shape) -> None:
    """Whatever the heads, sequence and microbatch; with recomputation, D runs F once more."""
    config = msgspec.structs.replace(SMALL, **shape)
    module = build_stage(config, ((2,), (2,)), 1)
    wrapped, data = SplitBackward(module, recompute=recompute), StageData(module, 0)
    found = []
    for call in (
        lambda: wrapped.forward(0, *data.received()),
        lambda: wrapped.input_grad(0, data.gradient()),
        lambda: wrapped.weight_grad(0),
    ):
        with counted_flops() as counted:
            call()
        found.append(counted.get_total_flops())
    work = stage_work(config, ((2,), (2,)), "ud", 1, 0, skip_masked=False)
    again = work.forward_flops if recompute else 0
    assert found == [work.forward_flops, work.input_grad_flops + again, work.weight_grad_flops]


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_a_tensor_parallel_group_shares_the_work_and_holds_the_same(tensor_parallel: int) -> None:
    split = split_layers(4, 2)
    alone = analytic_costs(SMALL, split, flops_per_s=1e9, memory_bytes_per_s=1e9)
    group = analytic_costs(SMALL, split, flops_per_s=1e9, memory_bytes_per_s=1e9, tensor_parallel=tensor_parallel)
    for (one,), (shared,) in zip(alone.blocks, group.blocks, strict=True):
        assert shared.forward_ns == pytest.approx(one.forward_ns / tensor_parallel, abs=1)
        assert shared.weight_grad_ns == pytest.approx(one.weight_grad_ns / tensor_parallel, abs=1)
        assert shared.forward_keep_bytes == one.forward_keep_bytes
        assert shared.forward_message_bytes == one.forward_message_bytes
    assert group.optimizer_step_ns[0] == pytest.approx(alone.optimizer_step_ns[0] / tensor_parallel, abs=1)


def test_twice_the_sequence_is_twice_the_products_and_four_times_the_scores() -> None:
    short, long = (layer_work(msgspec.structs.replace(SMALL, sequence=n), 0) for n in (16, 32))
    matrices = 2 * 32 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 88)  # 2 x 16 tokens
    assert short.weight_grad_flops == matrices
    assert long.weight_grad_flops == 2 * matrices
    assert long.forward_flops - 2 * matrices == 4 * (short.forward_flops - matrices)
    wide = layer_work(msgspec.structs.replace(SMALL, microbatch_size=4), 0)
    assert wide.forward_flops == 2 * short.forward_flops


@pytest.mark.parametrize(("traversal", "split"), STAGES)
def test_bytes_are_those_torch_holds(traversal, split) -> None:
    measured = profile_blocks(SMALL, split, traversal=traversal, repetitions=6, budget_s=0.01)
    computed = analytic_costs(SMALL, split, traversal=traversal, flops_per_s=1e12, fused_norms=False)
    assert computed.parameter_bytes == measured.parameter_bytes
    for row, other in zip(computed.blocks, measured.blocks, strict=True):
        for cost, real in zip(row, other, strict=True):
            for field in cost.__struct_fields__:
                if field.endswith("_bytes"):
                    assert getattr(cost, field) == getattr(real, field), field


def test_durations_and_what_follows_by_hand() -> None:
    """2 x 4 x 4 + 2 x 4 x 2 + 3 x 4 x 8 weights in the layer, 4 x 10 in the output layer; 6 tokens; 1 FLOP/ns."""
    config = ModelConfig(vocabulary=10, hidden=4, intermediate=8, heads=2, kv_heads=1, layers=1, sequence=6)
    costs = analytic_costs(config, ((1,),), flops_per_s=0.5e9, tensor_parallel=2, memory_bytes_per_s=1e9)
    layer, output = 2 * 16 + 2 * 8 + 3 * 32, 40
    scores = 2 * (2 * 6 * 6 * 4) // 2  # two products, the masked half left out
    cost = costs.blocks[0][0]
    assert cost.forward_ns == 2 * 6 * (layer + output) + scores
    assert cost.weight_grad_ns == 2 * 6 * (layer + output)
    assert cost.input_grad_ns == 2 * 6 * (layer + output) + scores * 5 // 2
    parameters = layer + 2 * 4 + 10 * 4 + output + 4
    assert costs.parameter_bytes == (4 * parameters,)
    assert costs.gradient_norm_ns == (3 * 4 * parameters // 2,)  # two devices at 1 byte/ns each
    assert costs.optimizer_step_ns == (7 * 4 * parameters // 2,)
    assert costs.origin == "analytic"


def test_recomputation_keeps_the_input_and_lengthens_d_by_f() -> None:
    split = split_layers(4, 2)
    plain = analytic_costs(SMALL, split, flops_per_s=1e9).blocks
    again = analytic_costs(SMALL, split, flops_per_s=1e9, recompute=True).blocks
    assert [row[0].forward_keep_bytes for row in again] == [8 * 32, 4 * 32 * 32]  # tokens; activations
    for (before,), (after,) in zip(plain, again, strict=True):
        assert after.input_grad_ns == before.input_grad_ns + before.forward_ns
        assert after.weight_grad_release_bytes == before.weight_grad_release_bytes


def test_a_tied_matrix_is_counted_once() -> None:
    tied = msgspec.structs.replace(SMALL, tied_embedding=True)
    assert model_work(SMALL).parameters - model_work(tied).parameters == 61 * 32
    assert model_work(SMALL).forward_flops == model_work(tied).forward_flops


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"flops_per_s": 0.0}, "flops_per_s = 0.0"),
        ({"flops_per_s": float("nan")}, "flops_per_s = nan"),
        ({"flops_per_s": 1e9, "tensor_parallel": 3}, "tensor_parallel = 3: cannot share 4 heads"),
        ({"flops_per_s": 1e9, "memory_bytes_per_s": -1.0}, "memory_bytes_per_s = -1.0"),
    ],
)
def test_bad_rates_are_refused(options: dict, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        analytic_costs(SMALL, ((4,),), **options)
