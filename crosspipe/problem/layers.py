"""Which decoder layers a (stage, chunk) holds: balanced or uneven splits, and the layer numbers behind them.

A split is `layers[stage][chunk]`, numbers of decoder layers, as `BlockCosts.layers` has it. The embedding belongs to
the first position and the output layer to the last; both may count as layers, as in the CrossPipe paper's "30 + 2".
No layer is ever dropped: what does not fit is refused with the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from crosspipe.errors import FieldError
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.traversal import check_traversal, place_of, position_of

Split = tuple[tuple[int, ...], ...]


def split_layers(
    layers: int,
    stages: int,
    chunks: int = 1,
    *,
    traversal: str = "ud",
    embedding_as_layers: int = 0,
    output_as_layers: int = 0,
    explicit: Sequence[int | Sequence[int]] | None = None,
) -> Split:
    """Decoder layers per (stage, chunk).

    `explicit` gives the counts, one per stage (or one list per stage, an entry per chunk); they must sum to `layers`.
    Without it, positions get equal counts and the remainder is spread evenly, earlier positions first; embedding and
    output layer count as `embedding_as_layers` and `output_as_layers` of the first and last position's share. Raises
    FieldError where a count is wrong or a position would hold no layer at all.
    """
    check_traversal(traversal, stages, chunks)
    if explicit is not None:
        return _explicit(layers, stages, chunks, traversal, explicit)
    positions = stages * chunks
    total = layers + embedding_as_layers + output_as_layers
    counts = [-(-(i + 1) * total // positions) + (-i * total // positions) for i in range(positions)]
    counts[0] -= embedding_as_layers
    counts[-1] -= output_as_layers
    inside = range(positions)[bool(embedding_as_layers) : -1 if output_as_layers else None]
    if min(counts) < 0 or any(counts[i] < 1 for i in inside):
        raise FieldError(
            "layers",
            layers,
            f"{layers} decoder layers do not fit {stages} stages x {chunks} chunks",
            f"use at least {positions} layers, fewer stages or chunks, or give the split",
        )
    return tuple(
        tuple(counts[position_of(traversal, stages, stage, chunk)] for chunk in range(chunks))
        for stage in range(stages)
    )


def split_model(
    config: ModelConfig,
    stages: int,
    chunks: int = 1,
    *,
    traversal: str = "ud",
    explicit: Sequence[int | Sequence[int]] | None = None,
) -> Split:
    """`split_layers` of a model, with its own weight of the embedding and output layer."""
    return split_layers(
        config.layers,
        stages,
        chunks,
        traversal=traversal,
        embedding_as_layers=config.embedding_as_layers,
        output_as_layers=config.output_as_layers,
        explicit=explicit,
    )


def layer_range(split: Split, traversal: str, stage: int, chunk: int) -> range:
    """Global numbers (0-based) of the decoder layers that (stage, chunk) holds."""
    stages = len(split)
    here = position_of(traversal, stages, stage, chunk)
    places = [place_of(traversal, stages, position) for position in range(here)]
    first = sum(split[s][c] for s, c in places)
    return range(first, first + split[stage][chunk])


def check_split(config: ModelConfig, split: Split, traversal: str) -> None:
    """Raises FieldError if `split` is no split of this model along this traversal."""
    check_traversal(traversal, len(split), len(split[0]) if split else 0)
    _explicit(config.layers, len(split), len(split[0]), traversal, split)


def _explicit(layers: int, stages: int, chunks: int, traversal: str, explicit: Sequence[int | Sequence[int]]) -> Split:
    rows = tuple((row,) if isinstance(row, int) else tuple(row) for row in explicit)
    if len(rows) != stages or any(len(row) != chunks for row in rows):
        raise FieldError(
            "layers",
            rows,
            f"does not give {chunks} count(s) for each of {stages} stages",
            f"give {stages} lists of {chunks}" if chunks > 1 else f"give {stages} counts",
        )
    counts = [count for row in rows for count in row]
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in counts):
        raise FieldError("layers", rows, "holds something that is no count of layers", "use whole numbers >= 0")
    if sum(counts) != layers:
        raise FieldError(
            "layers", rows, f"places {sum(counts)} layers, the model has {layers}", f"make them sum to {layers}"
        )
    for position in range(1, stages * chunks - 1):
        stage, chunk = place_of(traversal, stages, position)
        if rows[stage][chunk] == 0:
            raise FieldError(
                "layers",
                rows,
                f"stage {stage}, chunk {chunk} would hold nothing",
                "give it a layer; only the first and last position, with embedding and output, can do without",
            )
    return rows
