"""The table of operators: FLOPs by closed formulas, shares by hand."""

import pytest

from crosspipe.model import SplitBackward, build_stage
from crosspipe.model.config import ModelConfig
from crosspipe.problem.costs import Kernel
from crosspipe.profile.block_samples import StageData
from crosspipe.profile.kernels import kernel_table, operators, summarised

TINY = ModelConfig(
    vocabulary=61, hidden=32, intermediate=88, heads=4, kv_heads=2, layers=4, sequence=16, microbatch_size=2
)


def test_products_have_the_flops_of_the_matrices() -> None:
    module = build_stage(TINY, ((1,), (2,), (1,)), 1)
    stage, data = SplitBackward(module), StageData(module, 0)
    stage.forward(0, *data.received())
    stage.backward(0, data.gradient())
    took, flops = operators(stage, data)
    matrices = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 88)  # two layers
    assert flops["aten::mm"] == 3 * 2 * 32 * matrices  # F, D and W of 32 tokens
    time_ns, calls = took["aten::mm"]
    assert calls == 3 * 7 * 2  # as many as there are matrices, each three times
    assert time_ns > 0
    table = kernel_table(stage, data)
    assert sum(kernel.share for kernel in table) == pytest.approx(1)
    assert table[-1].operator == "other"


def test_what_takes_less_than_a_hundredth_is_summed_up() -> None:
    took = {"aten::mm": (600.0, 3), "aten::add": (391.0, 2), "aten::view": (5.0, 9), "other": (4.0, 1)}
    assert summarised(took, {"aten::mm": 1200}) == (
        Kernel(operator="aten::mm", calls=3, time_ns=600, share=0.6, flops=1200),
        Kernel(operator="aten::add", calls=2, time_ns=391, share=0.391),
        Kernel(operator="other", calls=10, time_ns=9, share=0.009),
    )
    assert summarised(took, {"aten::mm": 1200})[0].flops_per_s == 2e9
    assert summarised({}, {}) == ()
