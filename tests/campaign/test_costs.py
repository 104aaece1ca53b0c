"""Points whose block costs are given or counted: the same road, without a profile and without a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from crosspipe.campaign.config import NetworkConfig, PipelineConfig, check_possible, typed
from crosspipe.campaign.configs import config_dir
from crosspipe.campaign.costs import CostsConfig, make_costs
from crosspipe.campaign.problems import build_problem
from crosspipe.errors import CrosspipeError, UsageError
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.layers import split_model
from crosspipe.schedule import simulate
from crosspipe.solver import solve

MIB = 2**20
M70 = typed(yaml.safe_load((config_dir() / "model" / "m70.yaml").read_text()), ModelConfig)
PUBLISHED = typed(yaml.safe_load((config_dir() / "costs" / "m70_published.yaml").read_text()), CostsConfig)


def costs(traversal: str = "ud", **changes: object):
    chunks = 1 if traversal == "ud" else 2
    config = CostsConfig(
        source="given", **{"forward_ms": 38, "input_grad_ms": 46, "weight_grad_ms": 21, "message_mib": 64, **changes}
    )
    return make_costs(config, M70, traversal, split_model(M70, 8, chunks, traversal=traversal))


def test_a_stage_s_time_is_shared_by_its_chunks_and_only_the_ends_send_nothing() -> None:
    wave = costs("wave")
    assert wave.forward_reference_ns() == 38_000_000
    assert [c.forward_ns for c in wave.blocks[3]] == [19_000_000] * 2
    assert [c.forward_message_bytes for c in wave.blocks[0]] == [64 * MIB, 0]  # the last position is on stage 0
    assert [c.backward_message_bytes for c in wave.blocks[0]] == [0, 64 * MIB]


def test_recomputation_keeps_the_input_and_runs_f_again() -> None:
    kept = costs(activation_mib=1000, recompute=True).blocks[3][0]
    assert (kept.forward_keep_bytes, kept.input_grad_take_bytes) == (64 * MIB, 936 * MIB)
    assert (kept.forward_ns, kept.input_grad_ns, kept.weight_grad_ns) == (38_000_000, 84_000_000, 21_000_000)


def test_published_times_give_the_published_delay_free_column() -> None:
    """Table 5, case 1, no delay: 0.151 s a microbatch for 1F1B, 0.133 s for ZB-H1 (CrossPipe, ATC'25)."""
    problem = build_problem(
        make_costs(PUBLISHED, M70, "ud", split_model(M70, 8)), None, pace=None,
        network=NetworkConfig(kind="injected", delay=(0, 0)),
        pipeline=PipelineConfig(sites=2, stages=8, microbatches=16, memory_microbatches=8),
    )  # fmt: skip
    for name, published_s in (("1f1b", 0.151), ("zbh1", 0.133)):
        found = simulate(problem, solve(problem, name)).makespan_ns / 16 / 1e9
        assert found == pytest.approx(published_s, abs=0.0005)


def test_links_cannot_be_measured_for_a_simulated_point() -> None:
    with pytest.raises(CrosspipeError, match="no links are measured for a simulated point; inject: network=ratios"):
        build_problem(
            costs(), None, pace=None, network=NetworkConfig(kind="measured"),
            pipeline=PipelineConfig(sites=2, stages=8, microbatches=16),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": "given", "forward_ms": 1, "input_grad_ms": 1}, "costs.weight_grad_ms = None: is missing"),
        ({"source": "analytic"}, "costs.tflop_per_s = None: is missing"),
        ({"source": "measured", "forward_ms": 1.0}, "costs.forward_ms = 1.0: means nothing"),
        ({"source": "measured", "recompute": True}, "does not recompute"),
    ],
)
def test_what_is_missing_or_means_nothing_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        typed(given, CostsConfig)


def test_a_campaign_of_given_costs_ends_with_its_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crosspipe.cli import main

    monkeypatch.chdir(tmp_path)
    point = [
        "run", "costs=m70_published", "model=m70", "run=real", "pipeline.stages=8", "pipeline.microbatches=16",
        "network.delay=[0,0]", "schedule=zbh1", "cluster=debug", "store=store", "campaign_dir=campaign",
    ]  # fmt: skip
    assert main([*point, "until=run"]) == 2  # nothing can run at them
    assert main([*point, "until=solve"]) == 0
    summary = (tmp_path / "campaign" / "report" / "summary.md").read_text()
    assert "Makespan in ms" in summary
    assert "| 2121 |" in summary  # 16 (F+D+W) + 7 (F+D-W) = 16 * 105 + 7 * 63 ms
    assert not (tmp_path / "store" / "links").exists()


def test_a_model_known_by_cost_only_can_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    mixtral = typed(yaml.safe_load((config_dir() / "model" / "mixtral_8x7b.yaml").read_text()), ModelConfig)
    network = SimpleNamespace(kind="injected")
    point = SimpleNamespace(
        model=mixtral, costs=PUBLISHED, until="solve", run=SimpleNamespace(data=None), network=network
    )
    check_possible(point)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="known by cost only"):
        check_possible(SimpleNamespace(**{**vars(point), "costs": CostsConfig()}))  # type: ignore[arg-type]
