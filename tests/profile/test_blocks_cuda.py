"""The block profiler on a GPU: device times and the allocator's bytes."""

from __future__ import annotations

import pytest
import torch

from crosspipe.model import SplitBackward, build_stage
from crosspipe.model.config import ModelConfig
from crosspipe.model.memory import AllocatorStatistics
from crosspipe.profile.block_samples import StageData, time_call
from crosspipe.profile.blocks import profile_blocks

pytestmark = pytest.mark.gpu
CONFIG = ModelConfig(
    vocabulary=512, hidden=512, intermediate=1536, heads=8, kv_heads=4, layers=4, sequence=512, dtype="bfloat16"
)
ACTIVATION = 2 * 512 * 512


def test_profile_on_the_gpu() -> None:
    costs = profile_blocks(CONFIG, ((1,), (2,), (1,)), device="cuda", repetitions=10, budget_s=20)
    wide = 3 * ACTIVATION
    layer = (3 * ACTIVATION + wide) + (4 * ACTIVATION + 2 * wide)
    assert costs.blocks[1][0].weight_grad_release_bytes == 2 * layer
    assert costs.blocks[1][0].weight_grad_release_bytes < costs.blocks[1][0].forward_keep_bytes
    assert costs.blocks[1][0].forward_message_bytes == ACTIVATION
    assert all(spread.low > 0 for spread in costs.spreads.values())
    assert "cuda" in costs.environment["device"]


def test_device_time_is_what_the_device_spins() -> None:
    """`torch.cuda._sleep` spins for SM cycles: twice as many take twice as long."""
    device = torch.device("cuda")
    time_call(lambda: torch.cuda._sleep(1000), device)
    once, twice = (time_call(lambda n=n: torch.cuda._sleep(n * 20_000_000), device) for n in (1, 2))
    assert twice / once == pytest.approx(2, rel=0.05)


def test_split_gradients_have_the_bits_of_a_plain_backward_on_the_gpu() -> None:
    plain, module = (build_stage(CONFIG, ((0,), (4,), (0,)), 1, device="cuda") for _ in range(2))
    data = StageData(module, 0)
    x, gradient = data.received()[0], data.gradient()
    plain(x.clone().requires_grad_()).backward(gradient)
    stage = SplitBackward(module)
    stage.forward(0, x)
    stage.input_grad(0, gradient)
    stage.weight_grad(0)
    for expected, found in zip(plain.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-2, atol=1e-5)


def test_allocator_statistics_count_what_is_held() -> None:
    with AllocatorStatistics(torch.device("cuda")) as statistics:
        held = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        torch.empty(1 << 21, dtype=torch.uint8, device="cuda")
        assert statistics.live_bytes == held.nbytes
        assert statistics.peak_bytes == 3 << 20
