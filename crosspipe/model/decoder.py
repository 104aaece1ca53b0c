"""A Llama-style decoder, cut into pipeline stages: RMSNorm, grouped-query attention with rotary embedding, SwiGLU.

Architecture after Touvron et al. (2023) and the Llama 3 report. A stage holds the layers of one (stage, chunk);
parameters carry global names (`layers.7.attention.query.weight`) and are drawn from (seed, name) alone, so that any
split is the same model bit for bit. It knows nothing of microbatches, D and W: see `crosspipe.model.split_backward`.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from crosspipe.errors import FieldError
from crosspipe.model.config import ModelConfig, Split, check_split, layer_range
from crosspipe.problem.traversal import position_of


class Attention(nn.Module):
    """Causal grouped-query attention with rotary position embedding: (batch, sequence, hidden) to the same."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        self.query = nn.Linear(config.hidden, queries, bias=False)
        self.key = nn.Linear(config.hidden, keys, bias=False)
        self.value = nn.Linear(config.hidden, keys, bias=False)
        self.output = nn.Linear(queries, config.hidden, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        heads = (*x.shape[:2], -1, self.head_size)
        query = rotate(self.query(x).view(heads), rotary).transpose(1, 2)
        key = rotate(self.key(x).view(heads), rotary).transpose(1, 2)
        value = self.value(x).view(heads).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated MLP (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.mlp(self.mlp_norm(x))


class DecoderStage(nn.Module):
    """The layers of one (stage, chunk): tokens (batch, sequence) or activations in, activations or logits out.

    The first position also holds the embedding, the last one the final norm and the output layer. `numbers` are the
    global layer numbers.
    """

    def __init__(self, config: ModelConfig, numbers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.config, self.numbers, self.first, self.last = config, numbers, first, last
        if first:
            self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleDict({str(number): DecoderLayer(config) for number in numbers})
        if last:
            self.norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
            self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)
        table = torch.empty(config.sequence, config.head_size)
        self.register_buffer("cosine", table, persistent=False)
        self.register_buffer("sine", torch.empty_like(table), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.embedding(x)
        rotary = self.cosine[: x.shape[1]], self.sine[: x.shape[1]]
        for layer in self.layers.values():
            x = layer(x, rotary)
        return self.output(self.norm(x)) if self.last else x

    def tied_weight(self) -> nn.Parameter | None:
        """With `tied_embedding`: this stage's copy of the matrix whose gradients first and last stage must sum."""
        if not self.config.tied_embedding or not (self.first or self.last):
            return None
        return self.embedding.weight if self.first else self.output.weight


def build_stage(
    config: ModelConfig,
    layers: Split,
    stage: int,
    chunk: int = 0,
    *,
    traversal: str = "ud",
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> DecoderStage:
    """The module of (stage, chunk), initialised.

    `layers` is the split (`split_layers`). On the meta device nothing is initialised. Raises FieldError for a split
    that does not fit, and for architectures that are known by cost only.
    """
    for field in ("experts", "latent_attention"):
        if getattr(config, field) is not None:
            raise FieldError(field, config.name or "given", "such models are known by cost only", "use a dense model")
    check_split(config, layers, traversal)
    stages, chunks = len(layers), len(layers[0])
    position = position_of(traversal, stages, stage, chunk)
    with torch.device("meta"):
        module = DecoderStage(
            config,
            layer_range(layers, traversal, stage, chunk),
            first=position == 0,
            last=position == stages * chunks - 1,
        ).to(getattr(torch, config.dtype))
    if torch.device(device).type != "meta":
        module.to_empty(device=device)  # allocates each matrix by itself: tie afterwards
    if module.first and module.last and config.tied_embedding:
        module.output.weight = module.embedding.weight
    if torch.device(device).type != "meta":
        initialise(module, seed)
    return module


def initialise(module: DecoderStage, seed: int) -> None:
    """Sets every parameter from (seed, global name): norms 1, matrices normal with deviation 0.02.

    Matrices that write to the residual stream are divided by sqrt(2 * layers), as GPT-2 does. Drawn on the CPU in
    float32, so that every device and number format starts from the same values.
    """
    config = module.config
    residual = 1 / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            # the tied output layer draws the embedding's numbers, whichever stage it is on
            source = "embedding.weight" if config.tied_embedding and name == "output.weight" else name
            digest = hashlib.sha256(f"{seed}/{source}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            scale = 0.02 * (residual if name.endswith(("attention.output.weight", "mlp.down.weight")) else 1)
            parameter.copy_(torch.randn(parameter.shape, generator=generator).mul_(scale))
        cosine, sine = rotary_table(config)
        module.cosine.copy_(cosine)
        module.sine.copy_(sine)


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine (sequence, head_size) of position * theta^(-2i/head_size); halves i and i + head_size/2 pair."""
    frequency = config.rope_theta ** (-torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size)
    angle = torch.outer(torch.arange(config.sequence, dtype=torch.float64), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turns each pair of components of x (batch, sequence, heads, head_size) by its position's angle."""
    cosine, sine = (table.unsqueeze(1) for table in rotary)
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy in float32 of logits (..., vocabulary) against token numbers (...)."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), target.flatten())
