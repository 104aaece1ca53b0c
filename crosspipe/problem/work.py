"""What a transformer layer does and holds, counted: FLOPs, parameters and activation bytes of one microbatch.

Counts follow the matrices of a layer: F multiplies each once, D once by the transpose, W once for its gradient.
Elementwise work is not counted. Activations are those that torch's autograd keeps for `crosspipe.model.decoder`, with W
deferred. Sources: the Llama 3 report, Mixtral (Jiang et al. 2024), DeepSeek-V3's report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from crosspipe.problem.architecture import ModelConfig

FLOAT32_BYTES = 4
TOKEN_BYTES = 8
RECOMPUTED_SCORES = 2.5  # flash attention's backward: five products (Q K^T again, dV, dP, dQ, dK) for the forward's two


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one microbatch and what it holds. Bytes: `keep_bytes` from F to D, `weight_bytes` from D to W.

    `active_parameters` are those one token meets (all but the experts it does not visit).
    """

    parameters: int = 0
    active_parameters: int = 0
    forward_flops: int = 0
    input_grad_flops: int = 0
    weight_grad_flops: int = 0
    keep_bytes: int = 0
    weight_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Matrix(NamedTuple):
    """A linear layer: its input by name (several may share one), widths, how many exist, how many a token visits."""

    source: str
    inputs: int
    outputs: int
    copies: int = 1
    visited: int = 1


def layer_work(config: ModelConfig, number: int, *, skip_masked: bool = True, fused_norms: bool = True) -> Work:
    """One decoder layer; `number` tells dense from mixture-of-experts layers.

    `skip_masked`: attention kernels leave out the masked half of the scores (False: count them all, as torch's
    FlopCounterMode does). `fused_norms`: a norm keeps its input and one number per token; torch's CPU norm also keeps
    the normalised input.
    """
    sparse = config.experts is not None and number >= config.experts.dense_layers
    attention, inner_norms = _attention_matrices(config)
    matrices = attention + (_expert_matrices(config) if sparse else _mlp_matrices(config, config.intermediate))
    norms = [config.hidden, config.hidden, *inner_norms]
    score_width, value_width = _head_widths(config)
    tokens, width = config.tokens, config.dtype_bytes

    scores = 2 * tokens * config.sequence * config.heads * (score_width + value_width)
    if skip_masked:
        scores //= 2
    residuals = 2 * config.hidden  # both norms' inputs
    rotated = config.heads * score_width + _kept_keys_and_values(config)
    mixed = config.heads * value_width
    normalised = 0 if fused_norms else sum(norms)
    kept = residuals + sum(norms) + normalised + sum(inner_norms) + rotated + mixed + _kept_by_mlp(config, sparse)
    per_token = (len(norms) + config.heads) * FLOAT32_BYTES  # the norms' factors, the softmax's sums
    return _matrix_work(config, matrices) + Work(
        parameters=sum(norms),
        active_parameters=sum(norms),
        forward_flops=scores,
        input_grad_flops=round(RECOMPUTED_SCORES * scores),
        keep_bytes=tokens * (kept * width + per_token),
    )


def embedding_work(config: ModelConfig) -> Work:
    """The embedding: a lookup. It keeps its tokens; its gradient is made in D."""
    size = config.vocabulary * config.hidden
    return Work(parameters=size, active_parameters=size, keep_bytes=config.tokens * TOKEN_BYTES)


def output_work(config: ModelConfig, *, fused_norms: bool = True) -> Work:
    """Final norm, output layer and cross-entropy (its log-probabilities in float32, its targets, two scalars)."""
    copies = 2 if fused_norms else 3  # the norm's input and output, and the normalised input
    matrix = _matrix_work(config, (Matrix("output_norm", config.hidden, config.vocabulary),))
    stored = 0 if config.tied_embedding else matrix.parameters
    kept = config.tokens * (
        copies * config.hidden * config.dtype_bytes + FLOAT32_BYTES + config.vocabulary * FLOAT32_BYTES + TOKEN_BYTES
    )
    return msgspec.structs.replace(matrix, parameters=stored, active_parameters=stored) + Work(
        parameters=config.hidden,
        active_parameters=config.hidden,
        keep_bytes=kept + 2 * FLOAT32_BYTES,  # the loss's weight and its gradient
    )


def model_work(config: ModelConfig) -> Work:
    """The whole model: all layers, embedding and output."""
    layers = (layer_work(config, number) for number in range(config.layers))
    return total([embedding_work(config), *layers, output_work(config)])


def total(parts: Iterable[Work]) -> Work:
    """The sum of parts."""
    return sum(parts, Work())


def _matrix_work(config: ModelConfig, matrices: tuple[Matrix, ...]) -> Work:
    active = sum(m.visited * m.inputs * m.outputs for m in matrices)
    flops = 2 * config.tokens * active
    inputs = {m.source: m.visited * m.inputs for m in matrices}
    gradients = sum(m.visited * m.outputs for m in matrices)
    return Work(
        parameters=sum(m.copies * m.inputs * m.outputs for m in matrices),
        active_parameters=active,
        forward_flops=flops,
        input_grad_flops=flops,
        weight_grad_flops=flops,
        weight_bytes=config.tokens * config.dtype_bytes * (sum(inputs.values()) + gradients),
    )


def _attention_matrices(config: ModelConfig) -> tuple[tuple[Matrix, ...], tuple[int, ...]]:
    """The matrices of attention, and the widths of the norms inside it."""
    latent = config.latent_attention
    if latent is None:
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        return (
            Matrix("attention_norm", config.hidden, queries),
            Matrix("attention_norm", config.hidden, keys),
            Matrix("attention_norm", config.hidden, keys),
            Matrix("mixed", queries, config.hidden),
        ), ()
    return (
        Matrix("attention_norm", config.hidden, latent.query_rank),
        Matrix("query_norm", latent.query_rank, config.heads * (latent.nope_width + latent.rope_width)),
        Matrix("attention_norm", config.hidden, latent.kv_rank + latent.rope_width),
        Matrix("kv_norm", latent.kv_rank, config.heads * (latent.nope_width + latent.value_width)),
        Matrix("mixed", config.heads * latent.value_width, config.hidden),
    ), (latent.query_rank, latent.kv_rank)


def _head_widths(config: ModelConfig) -> tuple[int, int]:
    """Components of a head's query and key, and of its value."""
    latent = config.latent_attention
    if latent is None:
        return config.head_size, config.head_size
    return latent.nope_width + latent.rope_width, latent.value_width


def _kept_keys_and_values(config: ModelConfig) -> int:
    """Numbers per token that attention keeps of keys and values; latent attention expands them to all heads."""
    heads = config.kv_heads if config.latent_attention is None else config.heads
    return heads * sum(_head_widths(config))


def _mlp_matrices(config: ModelConfig, intermediate: int) -> tuple[Matrix, ...]:
    return (
        Matrix("mlp_norm", config.hidden, intermediate),
        Matrix("mlp_norm", config.hidden, intermediate),
        Matrix("product", intermediate, config.hidden),
    )


def _expert_matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """Router, routed experts (on copies of the tokens sent to them) and shared experts (on the tokens themselves)."""
    experts = config.experts
    assert experts is not None
    wide, routed = experts.intermediate, (experts.count, experts.active)
    matrices = (
        Matrix("mlp_norm", config.hidden, experts.count),
        Matrix("dispatched", config.hidden, wide, *routed),
        Matrix("dispatched", config.hidden, wide, *routed),
        Matrix("product", wide, config.hidden, *routed),
    )
    if not experts.shared:
        return matrices
    wide *= experts.shared  # shared experts see every token: one MLP as wide as all of them
    return (
        *matrices,
        Matrix("mlp_norm", config.hidden, wide),
        Matrix("mlp_norm", config.hidden, wide),
        Matrix("shared_product", wide, config.hidden),
    )


def _kept_by_mlp(config: ModelConfig, sparse: bool) -> int:
    """Numbers per token: gate, up, silu(gate) and their product; with experts also router scores, copies, outputs."""
    if not sparse:
        return 4 * config.intermediate
    experts = config.experts
    assert experts is not None
    wide = 4 * (experts.active + experts.shared) * experts.intermediate
    return wide + experts.count + 2 * experts.active * config.hidden
