"""The model in numbers, for those who build or profile it: its config, its split into stages, its process environment.

The structs live with the problem, so that planning and analysis have them without torch; this module needs no torch
either. `ALLOCATOR_ENVIRONMENT` is what every process that times or trains blocks on CPU should be started with.
"""

from __future__ import annotations

from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import Split, check_split, layer_range, split_layers, split_model

# Activations of a few MiB come and go with every block. glibc's default gives them back to the kernel each time, and
# the page faults of getting them again are the largest noise in a block's time. To be set before the process starts.
ALLOCATOR_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}

__all__ = [
    "ALLOCATOR_ENVIRONMENT",
    "ModelConfig",
    "Split",
    "check_split",
    "layer_range",
    "split_layers",
    "split_model",
]
