from __future__ import annotations

import pytest
import torch

from crosspipe.model.config import ModelConfig


@pytest.fixture
def config() -> ModelConfig:
    return ModelConfig(
        vocabulary=61, hidden=32, intermediate=88, heads=4, kv_heads=2, layers=4, sequence=16, microbatch_size=2
    )


@pytest.fixture
def batches(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of three microbatches."""
    generator = torch.Generator().manual_seed(1)
    shape = (3, config.microbatch_size, config.sequence)
    return tuple(torch.randint(config.vocabulary, shape, generator=generator) for _ in range(2))
