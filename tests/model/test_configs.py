"""Every shipped model config loads, and is the published architecture where it stands for one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from crosspipe.model import build_stage
from crosspipe.model.config import ModelConfig, split_model

FOLDER = Path(__file__).parents[2] / "conf" / "model"


def load(name: str) -> ModelConfig:
    return msgspec.yaml.decode((FOLDER / f"{name}.yaml").read_bytes(), type=ModelConfig)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_loads_under_its_own_name(path: Path) -> None:
    assert load(path.stem).name == path.stem


@pytest.mark.parametrize(
    ("name", "hidden", "intermediate", "heads", "kv_heads", "layers", "sequence"),
    [
        ("m8", 4096, 14336, 32, 8, 30, 4096),
        ("m70", 8192, 28672, 64, 8, 62, 4096),
        ("llama3_405b", 16384, 53248, 128, 8, 126, 8192),
    ],
)
def test_published_shapes(name, hidden, intermediate, heads, kv_heads, layers, sequence) -> None:
    config = load(name)
    found = (config.hidden, config.intermediate, config.heads, config.kv_heads, config.layers, config.sequence)
    assert found == (hidden, intermediate, heads, kv_heads, layers, sequence)
    assert config.dtype == "bfloat16"
    assert config.head_size == 128


@pytest.mark.parametrize(
    ("name", "stages", "ends", "inside"), [("m8", 4, 7, 8), ("m70", 8, 7, 8), ("llama3_405b", 16, 7, 8)]
)
def test_the_papers_splits_are_even_with_both_ends(name, stages, ends, inside) -> None:
    assert split_model(load(name), stages) == ((ends,), *[(inside,)] * (stages - 2), (ends,))


@pytest.mark.parametrize(
    ("name", "split", "traversal", "billions"),
    [
        # Llama 3 8B with 30 layers: 8.03 less two layers of 0.218; 70B with 62 layers: 70.55 less 18 of 0.856; 405B
        ("m8", ((7,), (8,), (8,), (7,)), "ud", 7.594),
        ("m70", ((20, 11), (20, 11)), "wave", 55.15),
        ("llama3_405b", ((10, 21), (40, 15), (20, 20)), "loop", 405.85),
    ],
)
def test_large_models_are_built_without_their_memory_in_any_split(name, split, traversal, billions) -> None:
    config = load(name)
    stages = [
        build_stage(config, split, stage, chunk, traversal=traversal, device="meta")
        for stage in range(len(split))
        for chunk in range(len(split[0]))
    ]
    parameters = [p for stage in stages for p in stage.parameters()]
    assert all(p.is_meta for p in parameters)
    assert sum(p.numel() for p in parameters) / 1e9 == pytest.approx(billions, rel=1e-4)
