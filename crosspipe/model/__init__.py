"""The model in torch: a Llama-style decoder cut into stages, and the backward pass cut into D and W.

What needs no torch (`ModelConfig`, `split_layers`) is imported at once, the rest when it is first used.
"""

from __future__ import annotations

import importlib

from crosspipe.model.config import ALLOCATOR_ENVIRONMENT, ModelConfig, split_layers, split_model

_HOME = {
    "DecoderStage": "crosspipe.model.decoder",
    "build_stage": "crosspipe.model.decoder",
    "token_loss": "crosspipe.model.decoder",
    "SplitBackward": "crosspipe.model.split_backward",
}

__all__ = [
    "ALLOCATOR_ENVIRONMENT",
    "DecoderStage",
    "ModelConfig",
    "SplitBackward",
    "build_stage",
    "split_layers",
    "split_model",
    "token_loss",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'crosspipe.model' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
