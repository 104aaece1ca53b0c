"""The decoder against an independent reading of Llama (plain tensor algebra, no module of ours), and its splitting."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import pytest
import torch

from crosspipe.errors import FieldError
from crosspipe.model import build_stage, split_layers, token_loss
from crosspipe.problem.architecture import Experts


def llama_by_hand(weights: dict[str, torch.Tensor], tokens: torch.Tensor, config) -> torch.Tensor:
    """Llama as complex rotations and explicit softmax, in float64."""
    w = {name: value.double() for name, value in weights.items()}
    width = config.hidden // config.heads

    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.norm_eps) * w[name]

    def turn(x):  # (batch, sequence, heads, width): components i and i + width/2 form a complex number
        turns = torch.arange(x.shape[1])[:, None] / config.rope_theta ** (2 * torch.arange(width // 2) / width)
        z = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * torch.exp(1j * turns.double())[:, None]
        return torch.cat((z.real, z.imag), -1)

    x = w["embedding.weight"][tokens]
    batch, length = tokens.shape
    mask = torch.ones(length, length).triu(1).bool()
    for layer in range(config.layers):
        name = f"layers.{layer}."
        h = norm(x, name + "attention_norm.weight")
        q, k, v = (
            (h @ w[f"{name}attention.{part}.weight"].T).view(batch, length, -1, width)
            for part in ("query", "key", "value")
        )
        repeat = config.heads // config.kv_heads
        q, k, v = turn(q), turn(k).repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
        score = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width)
        mixed = torch.einsum("bhqk,bkhd->bqhd", score.masked_fill(mask, -torch.inf).softmax(-1), v)
        x = x + mixed.reshape(batch, length, -1) @ w[name + "attention.output.weight"].T
        h = norm(x, name + "mlp_norm.weight")
        gate = h @ w[name + "mlp.gate.weight"].T
        x = x + (gate * torch.sigmoid(gate) * (h @ w[name + "mlp.up.weight"].T)) @ w[name + "mlp.down.weight"].T
    return norm(x, "norm.weight") @ w["output.weight"].T


def test_logits_and_loss_are_llamas(config, batches) -> None:
    tokens, targets = batches[0][0], batches[1][0]
    stage = build_stage(config, ((config.layers,),), 0, seed=3)
    for parameter in stage.parameters():  # as drawn, activations are too small to show a mistake
        if parameter.ndim == 2:
            parameter.data.mul_(8)
    expected = llama_by_hand(dict(stage.named_parameters()), tokens, config)
    logits = stage(tokens)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    picked = expected.log_softmax(-1).gather(-1, targets[..., None])
    torch.testing.assert_close(token_loss(logits, targets).double(), -picked.mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("traversal", "split"),
    [("ud", ((1,), (3,))), ("loop", ((1, 1), (1, 1))), ("wave", ((2, 0), (1, 1))), ("ud", ((0,), (4,), (0,)))],
)
def test_any_split_is_the_same_model_bit_for_bit(config, batches, traversal, split) -> None:
    whole = build_stage(config, ((config.layers,),), 0, seed=3)
    chunks = len(split[0])
    parts = {
        (stage, chunk): build_stage(config, split, stage, chunk, traversal=traversal, seed=3)
        for stage in range(len(split))
        for chunk in range(chunks)
    }
    merged = {name: value for part in parts.values() for name, value in part.state_dict().items()}
    assert merged.keys() == whole.state_dict().keys()
    assert all(torch.equal(merged[name], value) for name, value in whole.state_dict().items())
    path = {
        "ud": [(s, 0) for s in range(len(split))],
        "loop": [(0, 0), (1, 0), (0, 1), (1, 1)],
        "wave": [(0, 0), (1, 0), (1, 1), (0, 1)],
    }[traversal]
    x = batches[0][0]
    for place in path:
        x = parts[place](x)
    assert torch.equal(x, whole(batches[0][0]))


def test_the_seed_changes_the_model_and_layers_differ(config) -> None:
    one, other = (build_stage(config, ((4,),), 0, seed=seed).state_dict() for seed in (0, 1))
    name = "layers.{}.attention.query.weight"
    assert not torch.equal(one[name.format(0)], other[name.format(0)])
    assert not torch.equal(one[name.format(0)], one[name.format(1)])
    assert one["output.weight"].std().item() == pytest.approx(0.02, rel=0.1)
    assert one["layers.0.mlp.down.weight"].std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.1)


def test_tied_embedding_is_one_matrix_on_one_stage_and_two_equal_ones_on_two(config) -> None:
    tied = msgspec.structs.replace(config, tied_embedding=True)
    whole = build_stage(tied, ((4,),), 0)
    assert whole.output.weight is whole.embedding.weight
    first, last = (build_stage(tied, ((2,), (2,)), stage) for stage in (0, 1))
    assert torch.equal(first.tied_weight(), last.tied_weight())
    assert torch.equal(first.tied_weight(), whole.tied_weight())
    assert build_stage(config, ((2,), (2,)), 0).tied_weight() is None


def test_meta_stage_has_the_parameters_without_their_memory(config) -> None:
    stage = build_stage(config, split_layers(4, 2), 1, device="meta")
    # 2 layers of (q, k, v, o, gate, up, down, two norms), the final norm and the output layer
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 88 + 2 * 32
    assert sum(p.numel() for p in stage.parameters()) == 2 * layer + 32 + 32 * 61
    assert all(p.is_meta for p in stage.parameters())


def test_what_cannot_be_built_is_refused(config) -> None:
    with pytest.raises(FieldError, match="places 3 layers, the model has 4"):
        build_stage(config, ((1,), (2,)), 0)
    experts = msgspec.structs.replace(config, experts=Experts(count=8, active=2, intermediate=88))
    with pytest.raises(FieldError, match="known by cost only"):
        build_stage(experts, ((4,),), 0)


def test_config_and_split_need_no_torch() -> None:
    code = "import sys, crosspipe.model as m; m.ModelConfig, m.split_layers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
