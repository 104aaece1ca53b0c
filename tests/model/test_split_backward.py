"""D and W against a plain backward of the same modules: the same bits, in any order, with less memory after D."""

from __future__ import annotations

import copy
import itertools

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crosspipe.errors import FieldError
from crosspipe.model import SplitBackward, build_stage, token_loss
from crosspipe.model.memory import StorageTracker

SCALE = 1 / 3


def plain_gradients(config, batches) -> dict[str, torch.Tensor]:
    whole = build_stage(config, ((config.layers,),), 0)
    for tokens, targets in zip(*batches, strict=True):
        (token_loss(whole(tokens), targets) * SCALE).backward()
    return {name: parameter.grad for name, parameter in whole.named_parameters()}


def pipeline(config, stages, **options) -> list[SplitBackward]:
    split = ((config.layers // stages,),) * stages
    return [SplitBackward(build_stage(config, split, s), loss_scale=SCALE, **options) for s in range(stages)]


def run_forward(stages, batches, mb, *, fused=False) -> torch.Tensor:
    x = batches[0][mb]
    for stage in stages:
        x = stage.forward(mb, x, batches[1][mb] if stage is stages[-1] else None, fused=fused)
    return x


def gradients(stages) -> dict[str, torch.Tensor]:
    return {name: p.grad for stage in stages for name, p in stage.stage.named_parameters()}


@pytest.mark.parametrize("pieces", [1, 3, 40])
@pytest.mark.parametrize("recompute", [False, True])
def test_split_gradients_have_the_bits_of_a_plain_backward(config, batches, pieces, recompute) -> None:
    stages = pipeline(config, 2, recompute=recompute)
    for mb in range(3):  # all forwards first: nothing may be shared between microbatches
        loss = run_forward(stages, batches, mb)
        assert not loss.requires_grad
    for mb in range(3):
        assert stages[0].input_grad(mb, stages[1].input_grad(mb, None)) is None
    for stage in stages:
        for mb in range(3):
            for piece in range(pieces):
                stage.weight_grad(mb, piece, pieces)
        assert stage.in_flight() == ()
    expected = plain_gradients(config, batches)
    found = gradients(stages)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_fused_backward_has_the_same_bits_and_forward_returns_the_unscaled_loss(
    config, batches, fused, recompute
) -> None:
    stages = pipeline(config, 4, recompute=recompute)
    whole = build_stage(config, ((config.layers,),), 0)
    for mb in range(3):
        loss = run_forward(stages, batches, mb, fused=fused)
        assert torch.equal(loss, token_loss(whole(batches[0][mb]), batches[1][mb]))
        gradient = None
        for stage in reversed(stages):
            gradient = stage.backward(mb, gradient)
    expected = plain_gradients(config, batches)
    assert all(torch.equal(gradients(stages)[name], expected[name]) for name in expected)


def test_bfloat16_gradients_are_the_same_bits_too(config, batches) -> None:
    config = msgspec.structs.replace(config, dtype="bfloat16")
    stages = pipeline(config, 1)
    for mb in range(3):
        run_forward(stages, batches, mb)
        stages[0].input_grad(mb, None)
        stages[0].weight_grad(mb)
    expected = plain_gradients(config, batches)
    assert all(torch.equal(gradients(stages)[name], expected[name]) for name in expected)


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(2, 9), min_size=2, max_size=5),
    bias=st.booleans(),
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    pieces=st.integers(1, 4),
    order=st.randoms(),
)
def test_any_module_of_standard_layers_is_a_stage(widths, bias, rows, pieces, order) -> None:
    """Linear layers with and without bias, norms, activations, a frozen layer; W pieces in any order."""
    torch.manual_seed(0)
    layers = [
        part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b, bias=bias), nn.GELU(), nn.LayerNorm(b))
    ]
    module = nn.Sequential(*layers)
    if len(widths) > 3:
        module[3].weight.requires_grad_(False)
    plain = copy.deepcopy(module)
    names = list(module.state_dict())
    stage = SplitBackward(module)
    assert list(module.state_dict()) == names
    x, gradient = torch.randn(*rows, widths[0]), torch.randn(*rows, widths[-1])
    leaf = x.clone().requires_grad_()
    plain(leaf).backward(gradient)
    stage.forward(7, x)
    assert torch.equal(stage.input_grad(7, gradient), leaf.grad)
    todo = list(range(pieces))
    order.shuffle(todo)
    for piece in todo:
        stage.weight_grad(7, piece, pieces)
    for found, expected in zip(module.parameters(), plain.parameters(), strict=True):
        if expected.grad is None:
            assert found.grad is None
        else:
            assert torch.equal(found.grad, expected.grad)


def test_first_stage_with_real_input_gets_no_gradient_but_runs_d(config) -> None:
    stage = SplitBackward(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), needs_input_grad=False)
    stage.forward(0, torch.ones(4, 3))
    assert stage.input_grad(0, torch.arange(8.0).view(4, 2)) is None
    assert stage.stage[1].bias.grad.tolist() == [12.0, 16.0]  # column sums: D has done the norm
    assert stage.stage[0].weight.grad is None
    stage.weight_grad(0)
    assert stage.stage[0].weight.grad is not None


def test_w_by_hand() -> None:
    linear = nn.Linear(2, 1, bias=False)
    linear.weight.data = torch.tensor([[2.0, -1.0]])
    stage = SplitBackward(linear)
    assert stage.forward(0, torch.tensor([[3.0, 4.0], [5.0, 6.0]])).tolist() == [[2.0], [4.0]]
    assert stage.input_grad(0, torch.tensor([[10.0], [100.0]])).tolist() == [[20.0, -10.0], [200.0, -100.0]]
    stage.weight_grad(0)
    assert linear.weight.grad.tolist() == [[530.0, 640.0]]  # 10*3 + 100*5, 10*4 + 100*6


def test_a_module_still_trains_plainly_after_wrapping() -> None:
    linear = nn.Linear(2, 1, bias=False)
    SplitBackward(linear)
    linear(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert linear.weight.grad.tolist() == [[3.0, 4.0]]


def test_d_frees_and_w_leaves_nothing(config) -> None:
    """Counted by hand for one layer: h = one activation, i = the MLP's width, kv half of h here."""
    split = ((0,), (config.layers,), (0,))
    stage = SplitBackward(build_stage(config, split, 1))
    shape = (config.microbatch_size, config.sequence, config.hidden)
    h = 4 * config.microbatch_size * config.sequence * config.hidden
    i = h * config.intermediate // config.hidden
    stage.forward(0, torch.randn(shape))
    stage.backward(0, torch.randn(shape))  # gradients exist from here on
    with StorageTracker() as tracker:
        stage.forward(0, torch.randn(shape))
        after_forward = tracker.live_bytes
        stage.input_grad(0, torch.randn(shape))
        after_d = tracker.live_bytes
        # inputs: both norms' outputs, attention's, the MLP product; gradients: q, k, v, o, gate, up, down
        assert after_d == config.layers * (3 * h + i + (h + h // 2 + h // 2 + h + 2 * i + h))
        assert after_d < after_forward
        stage.weight_grad(0, 0, 2)
        assert 0 < tracker.live_bytes < 0.7 * after_d
        stage.weight_grad(0, 1, 2)
        assert tracker.live_bytes == 0
        for fused in (False, True):
            stage.forward(0, torch.randn(shape), fused=fused)
            assert tracker.live_bytes == after_forward
            stage.backward(0, torch.randn(shape))
            assert tracker.live_bytes == 0


def test_recompute_keeps_the_input_only(config) -> None:
    stage = SplitBackward(build_stage(config, ((0,), (4,), (0,)), 1), recompute=True)
    shape = (config.microbatch_size, config.sequence, config.hidden)
    with StorageTracker() as tracker:
        stage.forward(0, torch.randn(shape))
        assert tracker.live_bytes == 4 * config.microbatch_size * config.sequence * config.hidden


def test_out_of_order_is_refused_with_the_microbatch() -> None:
    stage = SplitBackward(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    with pytest.raises(FieldError, match="microbatch = 4: has no forward"):
        stage.input_grad(4, x)
    stage.forward(4, x)
    with pytest.raises(FieldError, match="microbatch = 4: was forwarded before"):
        stage.forward(4, x)
    with pytest.raises(FieldError, match="no weight gradients waiting"):
        stage.weight_grad(4)
    with pytest.raises(FieldError, match="grad = 'None'"):
        stage.input_grad(4, None)
    stage.forward(5, x, fused=True)
    with pytest.raises(FieldError, match="microbatch = 5: was forwarded for a fused B"):
        stage.input_grad(5, x)
    assert torch.equal(stage.backward(5, x), x @ stage.stage.weight)  # it is still there


def test_a_piece_twice_or_of_another_cut_is_refused() -> None:
    stage = SplitBackward(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    stage.forward(0, x)
    stage.input_grad(0, x)
    stage.weight_grad(0, 1, 3)
    for piece, pieces in ((1, 3), (0, 2), (0, 1)):
        with pytest.raises(FieldError, match=f"piece = '{piece} of {pieces}'"):
            stage.weight_grad(0, piece, pieces)
    stage.weight_grad(0, 0, 3)
    stage.weight_grad(0, 2, 3)
    assert stage.in_flight() == ()
    stage.forward(0, x)
    stage.discard()
    stage.forward(0, x)
