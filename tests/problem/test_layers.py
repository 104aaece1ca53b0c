import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosspipe.errors import FieldError
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import layer_range, split_layers, split_model


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"layers": 8, "stages": 4}, ((2,), (2,), (2,), (2,))),
        ({"layers": 30, "stages": 4}, ((8,), (7,), (8,), (7,))),
        # the paper's M8 and M70: embedding and output count as layers, 32 on 4 and 64 on 8
        ({"layers": 30, "stages": 4, "embedding_as_layers": 1, "output_as_layers": 1}, ((7,), (8,), (8,), (7,))),
        ({"layers": 62, "stages": 8, "embedding_as_layers": 1, "output_as_layers": 1}, ((7,), *[(8,)] * 6, (7,))),
        # along a wave stage 0 holds the first and the last position
        ({"layers": 8, "stages": 2, "chunks": 2, "traversal": "wave", "output_as_layers": 1}, ((3, 1), (2, 2))),
        ({"layers": 30, "stages": 4, "explicit": [9, 7, 7, 7]}, ((9,), (7,), (7,), (7,))),
        ({"layers": 8, "stages": 2, "chunks": 2, "traversal": "loop", "explicit": [[1, 2], [3, 2]]}, ((1, 2), (3, 2))),
    ],
)
def test_splits_worked_by_hand(arguments: dict, expected: tuple) -> None:
    assert split_layers(**arguments) == expected


def test_layer_numbers_follow_the_traversal() -> None:
    split = ((4, 3), (4, 4))
    assert [layer_range(split, "loop", s, c) for c in (0, 1) for s in (0, 1)] == [
        range(0, 4),
        range(4, 8),
        range(8, 11),
        range(11, 15),
    ]
    assert layer_range(split, "wave", 1, 1) == range(8, 12)
    assert layer_range(split, "wave", 0, 1) == range(12, 15)


@given(
    layers=st.integers(1, 200),
    stages=st.integers(1, 16),
    wave=st.booleans(),
    ends=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_no_layer_is_lost_and_no_position_has_two_more_than_another(layers, stages, wave, ends) -> None:
    chunks, traversal = (2, "wave") if wave else (1, "ud")
    embedding, output = ends
    try:
        split = split_layers(
            layers, stages, chunks, traversal=traversal, embedding_as_layers=embedding, output_as_layers=output
        )
    except FieldError:
        assert layers + embedding + output < stages * chunks * (1 + max(embedding, output))
        return
    held = [n for s in range(stages) for c in range(chunks) for n in layer_range(split, traversal, s, c)]
    assert sorted(held) == list(range(layers))
    weights = [list(row) for row in split]
    weights[0][0] += embedding
    weights[0 if wave else -1][-1] += output
    flat = [weight for row in weights for weight in row]
    assert max(flat) - min(flat) <= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"layers": 3, "stages": 4}, "3 decoder layers do not fit 4 stages"),
        ({"layers": 30, "stages": 4, "explicit": [7, 7, 7, 7]}, "places 28 layers, the model has 30"),
        ({"layers": 30, "stages": 4, "explicit": [10, 10, 10]}, "give 4 counts"),
        ({"layers": 30, "stages": 2, "explicit": [40, -10]}, "whole numbers >= 0"),
        ({"layers": 30, "stages": 2, "chunks": 2}, "ud has exactly 1"),
        (
            {"layers": 4, "stages": 2, "chunks": 2, "traversal": "wave", "explicit": [[1, 1], [0, 2]]},
            "stage 1, chunk 0 would hold nothing",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(arguments: dict, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        split_layers(**arguments)


SMALL = {"vocabulary": 256, "hidden": 64, "intermediate": 176, "heads": 4, "kv_heads": 2, "layers": 4, "sequence": 32}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kv_heads": 3}, "kv_heads = 3: 4 heads cannot share 3 key/value heads evenly; use a divisor of 4"),
        ({"hidden": 66}, "heads = 4: does not divide hidden = 66"),
        ({"hidden": 20}, "heads = 4: a head is 5 wide"),
        ({"head_width": 7}, "head_width = 7"),
        ({"layers": 0}, "layers = 0: is not a whole number >= 1"),
        ({"norm_eps": float("nan")}, "norm_eps = nan"),
        ({"dtype": "int4"}, "use one of float32, bfloat16, float16"),
    ],
)
def test_config_errors_name_field_and_remedy(change: dict, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        ModelConfig(**(SMALL | change))


def test_split_model_counts_the_ends_as_the_model_says() -> None:
    config = ModelConfig(**(SMALL | {"layers": 6, "embedding_as_layers": 1, "output_as_layers": 1}))
    assert split_model(config, 4) == ((1,), (2,), (2,), (1,))
