"""The block profiler on a tiny model: bytes by closed formulas and torch's own profiler, times by their properties."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from crosspipe.errors import FieldError
from crosspipe.model import SplitBackward, build_stage, split_layers
from crosspipe.model.config import ModelConfig
from crosspipe.model.memory import StorageTracker
from crosspipe.problem import BlockCosts
from crosspipe.profile.block_memory import block_memory
from crosspipe.profile.block_samples import StageData, believed, time_blocks, time_call
from crosspipe.profile.blocks import main, profile_blocks
from crosspipe.store import load

ROOT = Path(__file__).parents[2]
TINY = ModelConfig(
    vocabulary=61, hidden=32, intermediate=88, heads=4, kv_heads=2, layers=4, sequence=16, microbatch_size=2
)
ACTIVATION = 4 * 2 * 16 * 32  # bytes of (2 sequences, 16 tokens, 32 wide) in float32
LAYER = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 88 + 2 * 32  # parameters: q, k and v, o, gate, up and down, norms


@pytest.fixture(scope="module")
def costs() -> BlockCosts:
    return profile_blocks(TINY, ((1,), (2,), (1,)), repetitions=8, budget_s=20)


def test_messages_and_parameters_by_formula(costs: BlockCosts) -> None:
    assert [row[0].forward_message_bytes for row in costs.blocks] == [ACTIVATION, ACTIVATION, 0]
    assert [row[0].backward_message_bytes for row in costs.blocks] == [0, ACTIVATION, ACTIVATION]
    assert costs.parameter_bytes == (
        4 * (LAYER + 61 * 32),
        4 * 2 * LAYER,
        4 * (LAYER + 32 + 61 * 32),
    )
    assert costs.layers == ((1,), (2,), (1,))
    assert costs.origin == "measured"


def test_memory_for_w_is_each_linear_layers_input_and_output_gradient(costs: BlockCosts) -> None:
    wide = ACTIVATION * 88 // 32
    # inputs: q/k/v share one, o, gate/up share one, down; gradients: q, k, v (half each), o, gate, up, down
    layer = (3 * ACTIVATION + wide) + (ACTIVATION + ACTIVATION + ACTIVATION + 2 * wide + ACTIVATION)
    logits = ACTIVATION * 61 // 32
    assert [row[0].weight_grad_release_bytes for row in costs.blocks] == [layer, 2 * layer, layer + ACTIVATION + logits]
    assert all(row[0].input_grad_take_bytes == 0 for row in costs.blocks)
    # D frees what only it needs: more than a fifth
    assert all(row[0].weight_grad_release_bytes < 0.8 * row[0].forward_keep_bytes for row in costs.blocks)
    # two equal layers hold twice one layer and the input of the stage only once; embedding and tokens come on top
    assert costs.blocks[1][0].forward_keep_bytes == 2 * (costs.blocks[0][0].forward_keep_bytes - 8 * 2 * 16)


def allocated(call) -> int:
    """Bytes that `call` allocated and did not free, by torch.profiler's allocation events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("stage", [0, 1])
def test_memory_agrees_with_torch_profiler_to_the_byte(stage: int) -> None:
    module = build_stage(TINY, ((2,), (2,)), stage)
    wrapped, data = SplitBackward(module), StageData(module, 0)
    time_blocks(wrapped, data, 1, 1, 1)  # gradients exist
    memory = block_memory("s", wrapped, StorageTracker(), data.received, data.gradient)
    # the loss or output is dropped, as the call's result is
    assert allocated(lambda: wrapped.forward(0, *data.received())) == memory.after_forward
    assert allocated(lambda: wrapped.input_grad(0, data.gradient())) == memory.after_input_grad - memory.after_forward
    assert allocated(lambda: wrapped.weight_grad(0)) == -memory.after_input_grad


def test_times_are_medians_within_their_intervals(costs: BlockCosts) -> None:
    places = [f"s{stage}.c0.{kind}" for stage in range(3) for kind in "FDWB"]
    after = [f"s{stage}.{what}" for stage in range(3) for what in ("gradient_norm", "optimizer_step")]
    assert sorted(costs.spreads) == sorted(places + after)
    assert all(0 < s.low <= s.median <= s.high for s in costs.spreads.values())
    # 3 of 8 in each of 3 passes; the F before a fused B is another one
    assert {costs.spreads[place].samples for place in places} == {9}
    cost = costs.blocks[1][0]
    assert cost.forward_ns == round(costs.spreads["s1.c0.F"].median)
    assert cost.backward_ns == round(costs.spreads["s1.c0.B"].median)
    assert costs.optimizer_step_ns[2] == round(costs.spreads["s2.optimizer_step"].median)


def test_every_chunk_of_a_wave_reports_and_torch_keeps_its_threads() -> None:
    before, seen = torch.get_num_threads(), []
    costs = profile_blocks(
        TINY,
        split_layers(4, 2, 2, traversal="wave"),
        traversal="wave",
        repetitions=6,
        budget_s=0.01,
        passes=2,
        threads=before + 1,
        progress=lambda *args: seen.append(args),
    )
    assert torch.get_num_threads() == before
    assert costs.environment["threads"] == str(before + 1)
    assert [(done, total) for done, total, _ in seen] == [(0, 8), (2, 8), (4, 8), (6, 8), (8, 8)]
    assert seen[2][2] == "stage 0, pass 2 of 2"
    # first and last position of a wave are both on stage 0
    assert [[c.forward_message_bytes for c in row] for row in costs.blocks] == [[ACTIVATION, 0], [ACTIVATION] * 2]
    assert [[c.backward_message_bytes for c in row] for row in costs.blocks] == [[0, ACTIVATION], [ACTIVATION] * 2]
    assert costs.spreads["s0.c1.D"].samples == 6  # the budget was over, but fewer would give no interval


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x.detach())
        return self.linear(x)


def vectors() -> tuple[torch.Tensor, None]:
    return torch.ones(1, 4), None


def test_a_module_that_holds_activations_is_named() -> None:
    stage = SplitBackward(Leaky())
    stage.forward(0, torch.ones(1, 4))
    stage.backward(0, torch.ones(1, 4))  # gradients exist
    with pytest.raises(FieldError, match=r"s3\.c1 = 32: bytes are still held"):  # 16 of each of two microbatches
        block_memory("s3.c1", stage, StorageTracker(), vectors, lambda: torch.ones(1, 4))


class Thirsty(nn.Module):
    """Uses 4000 bytes while it runs and keeps none of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(1000).sum()


def test_workspace_is_what_a_block_needs_besides() -> None:
    memory = block_memory("s0.c0", SplitBackward(Thirsty()), StorageTracker(), vectors, lambda: torch.ones(1, 4))
    # x * sum keeps x (16 bytes) only if the sum needed a gradient: the sum (4 bytes) is kept, x stays as the leaf
    assert memory.after_forward == 20
    assert memory.after_input_grad == 0
    assert memory.workspace == 4000  # the ones; the sum and x are held anyway


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "s2.c0.W = None: was never timed"),
        ([1.0, math.nan], "s2.c0.W = nan: sample 1 of 2"),
        ([-5.0], "s2.c0.W = -5.0: sample 0 of 1 is no duration"),
    ],
)
def test_bad_samples_name_stage_and_block(samples: list[float], says: str) -> None:
    with pytest.raises(FieldError, match=says):
        believed("s2.c0", {"F": [1.0], "W": samples})


def test_time_call_is_the_wall_clock() -> None:
    import time

    start = time.monotonic_ns()
    took = time_call(lambda: time.sleep(0.02), torch.device("cpu"))
    assert 20e6 <= took <= time.monotonic_ns() - start


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repetitions": 3}, "use 6 or more"),
        ({"budget_s": 0.0}, "budget_s = 0.0"),
        ({"threads": 0}, "threads = 0"),
        ({"passes": 0}, "passes = 0"),
        ({"device": "meta"}, "use cpu or cuda"),
    ],
)
def test_bad_options_are_refused(options: dict, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        profile_blocks(TINY, ((4,),), **options)


def test_command_writes_the_artifact(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = str(ROOT / "conf" / "model" / "tiny.yaml")
    options = ["--layers", "3,1", "--repetitions", "6", "--budget-s", "0.1", "--out", str(tmp_path)]
    assert main(["--model", model, "--stages", "2", *options]) == 0
    costs = load(tmp_path / "blocks.json", BlockCosts)
    assert costs.layers == ((3,), (1,))
    printed = capsys.readouterr()
    assert "s1.c0" in printed.out
    assert "[1/6] stage 1, pass 1 of 3" in printed.err


def test_command_reads_small_numbers_as_json_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = tmp_path / "model.yaml"
    tiny = (ROOT / "conf" / "model" / "tiny.yaml").read_text()
    model.write_text("".join(line for line in tiny.splitlines(True) if "norm_eps" not in line) + "norm_eps: 1e-6\n")
    assert main(["--model", str(model), "--stages", "9"]) == 1  # read, and refused for the stages
    assert "do not fit 9 stages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--model", "missing.yaml", "--stages", "2"], 2, "--model = 'missing.yaml': No such file"),
        (["--model", "{model}", "--stages", "9"], 1, "4 decoder layers do not fit 9 stages"),
        (["--model", "{model}", "--stages", "2", "--layers", "2,x"], 2, "--layers = '2,x'"),
    ],
)
def test_command_says_what_is_wrong_in_one_line(arguments, code, says, capsys) -> None:
    model = str(ROOT / "conf" / "model" / "tiny.yaml")
    assert main([argument.format(model=model) for argument in arguments]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_help_starts_as_a_module() -> None:
    command = [sys.executable, "-m", "crosspipe.profile.blocks", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "--stages" in done.stdout
