"""The architecture of a Llama-style transformer, in numbers: what `conf/model/*.yaml` holds.

`ModelConfig` is what the decoder is built from and what the analytic costs are computed from; it knows neither torch
nor pipelines. Mixture-of-experts layers and latent attention (DeepSeek-V2's MLA) are described too, for costs only.
"""

from __future__ import annotations

import msgspec

from crosspipe.errors import FieldError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mixture of experts in place of the MLP: each token visits `active` of `count` experts and all `shared` ones.

    `intermediate` is the width of one expert; the first `dense_layers` layers keep the model's dense MLP.
    """

    count: int
    active: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, ("count", "active", "intermediate"), ("shared", "dense_layers"))
        if self.active > self.count:
            raise FieldError("active", self.active, f"there are {self.count} experts", f"use at most {self.count}")


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention: queries and keys/values go through low-rank projections (DeepSeek-V2, §2.1).

    A head's query and key have `nope_width` plain and `rope_width` rotated components, its value has `value_width`.
    """

    query_rank: int
    kv_rank: int
    nope_width: int
    rope_width: int
    value_width: int

    def __post_init__(self) -> None:
        _check_counts(self, self.__struct_fields__)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Llama-style decoder and the shape of one microbatch.

    A microbatch is `microbatch_size` sequences of `sequence` tokens. `head_width` is hidden/heads unless given.
    `embedding_as_layers` and `output_as_layers` say how many decoder layers the embedding and the output layer count as
    when layers are split among stages (the CrossPipe paper's "30 + 2" counts one each). With `tied_embedding` the
    output layer uses the embedding's matrix.
    """

    name: str = ""
    vocabulary: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int | None = None
    layers: int
    sequence: int
    microbatch_size: int = 1
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dtype: str = "float32"
    tied_embedding: bool = False
    embedding_as_layers: int = 0
    output_as_layers: int = 0
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None

    def __post_init__(self) -> None:
        _check_counts(
            self,
            ("vocabulary", "hidden", "intermediate", "heads", "kv_heads", "layers", "sequence", "microbatch_size"),
            ("embedding_as_layers", "output_as_layers"),
        )
        if self.heads % self.kv_heads:
            raise FieldError(
                "kv_heads",
                self.kv_heads,
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly",
                f"use a divisor of {self.heads}",
            )
        if self.head_width is None and self.hidden % self.heads:
            raise FieldError(
                "heads",
                self.heads,
                f"does not divide hidden = {self.hidden}",
                f"use a divisor of {self.hidden}, or give head_width",
            )
        if self.head_size < 2 or self.head_size % 2:
            field = "heads" if self.head_width is None else "head_width"
            raise FieldError(
                field,
                getattr(self, field),
                f"a head is {self.head_size} wide; the rotary embedding turns pairs",
                "choose an even head width of 2 or more",
            )
        for name in ("rope_theta", "norm_eps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise FieldError(
                    name, getattr(self, name), "is not a finite number > 0", "use for example 10000 or 1e-5"
                )
        if self.dtype not in DTYPE_BYTES:
            raise FieldError("dtype", self.dtype, "no such number format", f"use one of {', '.join(DTYPE_BYTES)}")
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise FieldError(
                "experts.dense_layers",
                self.experts.dense_layers,
                f"the model has {self.layers} layers",
                f"use at most {self.layers}",
            )

    @property
    def cost_only(self) -> bool:
        """Whether only its cost is known: the decoder of `crosspipe.model` has no experts and no latent attention."""
        return self.experts is not None or self.latent_attention is not None

    @property
    def head_size(self) -> int:
        """Components of one attention head."""
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def tokens(self) -> int:
        """Tokens in one microbatch."""
        return self.microbatch_size * self.sequence

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one number of `dtype`."""
        return DTYPE_BYTES[self.dtype]


def _check_counts(struct: msgspec.Struct, positive: tuple[str, ...], not_negative: tuple[str, ...] = ()) -> None:
    for name in (*positive, *not_negative):
        value, least = getattr(struct, name), 1 if name in positive else 0
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise FieldError(name, value, f"is not a whole number >= {least}", f"use {least} or more")
