"""Standard layers as stages against a plain backward of a copy, and what cannot be a stage."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from crosspipe.errors import FieldError
from crosspipe.model import SplitBackward, build_stage
from crosspipe.model.memory import StorageTracker


class SelfAttention(nn.Module):
    """Attention by scaled_dot_product_attention, with dropout inside it."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.output, self.dropout = nn.Linear(width, 3 * width), nn.Linear(width, width), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)
        return x + self.output(mixed.transpose(1, 2).flatten(2))


class Attended(nn.Module):
    """torch's own multi-head attention, whose output layer is a subclass of Linear that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Shared(nn.Module):
    """One linear layer used twice, and its weight once more outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.linear(self.linear(x).tanh()), self.linear.weight)


def pruned() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5))


STAGES = {
    "embedding": lambda: nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8)),
    "norms": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8), nn.SiLU(), nn.Linear(8, 8)),
    "inplace_inside": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)),
    "convolution": lambda: nn.Sequential(nn.Conv1d(5, 7, 3, padding=1), nn.GroupNorm(1, 7), nn.Linear(8, 4)),
    "batch_norm": lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(8, 8)),
    "attention": lambda: nn.Sequential(SelfAttention(8, 0.0), nn.Linear(8, 8)),
    "attention_dropout": lambda: nn.Sequential(SelfAttention(8, 0.3), nn.Linear(8, 8)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8), nn.Dropout(0.2)),
    "torch_attention": lambda: nn.Sequential(Attended(), nn.Linear(8, 8)),
    "torch_encoder_layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
    "recurrent": lambda: nn.Sequential(nn.Linear(8, 8), nn.Flatten(0, 1), nn.RNNCell(8, 8)),
    "shared": Shared,
    "pruned": pruned,
    "weight_norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 3)),
}


def seeded(name: str) -> nn.Module:
    torch.manual_seed(0)
    return STAGES[name]()


@pytest.mark.parametrize(
    ("name", "recompute"), [(name, r) for name in STAGES for r in (False, True) if (name, r) != ("batch_norm", True)]
)
def test_gradients_are_those_of_plain_autograd(name: str, recompute: bool) -> None:
    module, plain = seeded(name), seeded(name)
    x = torch.randint(11, (2, 5)) if name == "embedding" else torch.randn(2, 5, 8)
    stage = SplitBackward(module, recompute=recompute)
    outputs, expected_inputs, found_inputs = [], [], []
    for mb in range(2):  # both in flight at once
        torch.manual_seed(10 + mb)
        leaf = x if name == "embedding" else x.clone().requires_grad_()
        output = plain(leaf)
        torch.manual_seed(20 + mb)
        gradient = torch.randn(output.shape)
        output.backward(gradient)
        expected_inputs.append(leaf.grad)
        torch.manual_seed(10 + mb)
        outputs.append((stage.forward(mb, x), output, gradient))
    before = torch.get_rng_state()
    for mb, (found, output, gradient) in enumerate(outputs):
        assert torch.equal(found, output)
        found_inputs.append(stage.input_grad(mb, gradient))
    assert torch.equal(torch.get_rng_state(), before)  # running F again draws nothing
    for mb in range(2):
        stage.weight_grad(mb)
    for found, expected in zip(found_inputs, expected_inputs, strict=True):
        assert (found is expected is None) or torch.equal(found, expected)
    expected = dict(plain.named_parameters())
    for key, parameter in module.named_parameters():
        if name == "shared":  # two sums in another order
            torch.testing.assert_close(parameter.grad, expected[key].grad, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(parameter.grad, expected[key].grad), key


def test_hooked_weights_are_not_deferred_and_their_hooks_run() -> None:
    linear = nn.Linear(2, 1, bias=False)
    linear.weight.register_hook(lambda gradient: gradient * 10)
    stage = SplitBackward(linear)
    stage.forward(0, torch.tensor([[3.0, 4.0]]))
    stage.input_grad(0, torch.tensor([[1.0]]))
    stage.weight_grad(0)
    assert linear.weight.grad.tolist() == [[30.0, 40.0]]


def test_a_frozen_first_stage_runs_d_and_w_and_gives_nothing() -> None:
    stage = SplitBackward(nn.Embedding(4, 2).requires_grad_(False))
    stage.forward(0, torch.tensor([1, 2]))
    assert stage.input_grad(0, torch.ones(2, 2)) is None
    stage.weight_grad(0)
    assert stage.stage.weight.grad is None
    assert stage.in_flight() == ()


@pytest.mark.parametrize(
    ("module", "options", "wrong"),
    [
        (nn.Sequential(nn.LazyLinear(3)), {}, "stage.0 = 'LazyLinear': has no weights yet; run it once"),
        (nn.Embedding(3, 2, sparse=True), {}, "stage = 'Embedding': gives sparse gradients"),
        (
            nn.Sequential(nn.BatchNorm1d(5)),
            {"recompute": True},
            "stage.0 = 'BatchNorm1d': would count every microbatch",
        ),
        (torch.compile(nn.Linear(2, 2), backend="eager"), {}, "stage = 'OptimizedModule': is compiled as a whole"),
    ],
)
def test_what_cannot_be_a_stage_is_refused_by_its_name(module, options, wrong) -> None:
    with pytest.raises(FieldError, match=wrong):
        SplitBackward(module, **options)


def test_replication_by_hooks_is_refused() -> None:
    class DistributedDataParallel(nn.Module):
        __module__ = "torch.nn.parallel.distributed"

    DistributedDataParallel.__qualname__ = "DistributedDataParallel"  # the real one wants a process group
    with pytest.raises(FieldError, match="stage = 'DistributedDataParallel': synchronises gradients by hooks"):
        SplitBackward(DistributedDataParallel())


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Doubles(nn.Module):
    """Writes into its input, out of autograd's sight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.mul_(2)
        return x * 1.0


@pytest.mark.parametrize(
    ("module", "wrong"), [(Pair(), "Pair': gives a tuple"), (Doubles(), "Doubles': writes into its input")]
)
@pytest.mark.parametrize("recompute", [False, True])
def test_what_f_shows_to_be_no_stage_is_refused(module, recompute, wrong) -> None:
    with pytest.raises(FieldError, match=wrong):
        SplitBackward(module, recompute=recompute).forward(0, torch.ones(2))


def test_mixed_precision_by_autocast_is_refused() -> None:
    stage = SplitBackward(nn.Linear(2, 2))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(FieldError, match="autocast"):
        stage.forward(0, torch.ones(1, 2))


def test_after_d_at_most_four_fifths_of_the_activations_are_held(config) -> None:
    """Llama's proportions: the MLP 3.5 times as wide as the model, four heads to one of keys."""
    shape = {"hidden": 64, "intermediate": 224, "heads": 8, "kv_heads": 2, "sequence": 64}
    stage = SplitBackward(build_stage(msgspec.structs.replace(config, **shape), ((0,), (4,), (0,)), 1))
    size = (2, 64, 64)
    stage.forward(0, torch.randn(size))
    stage.backward(0, torch.randn(size))  # gradients exist from here on
    with StorageTracker() as tracker:
        stage.forward(0, torch.randn(size))
        after_forward = tracker.live_bytes
        stage.input_grad(0, torch.randn(size))
        assert tracker.live_bytes <= 0.8 * after_forward
        stage.weight_grad(0)
        assert tracker.live_bytes == 0
