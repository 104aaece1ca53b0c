"""One profile from several nodes', by hand: each stage its own node's, or the median with the range between nodes."""

import msgspec
import pytest

from crosspipe.errors import FieldError
from crosspipe.problem import BlockCost, BlockCosts, Spread
from crosspipe.problem.nodes import against_peers, costs_of_nodes, slow_nodes


def profile(factor: float, layers: tuple[tuple[int, ...], ...] = ((1,), (1,))) -> BlockCosts:
    forward = round(100 * factor)
    cost = BlockCost(
        forward_ns=forward,
        input_grad_ns=2 * forward,
        weight_grad_ns=forward,
        forward_keep_bytes=8,
        input_grad_release_bytes=8,
        weight_grad_release_bytes=0,
    )
    return BlockCosts(
        blocks=((cost,), (msgspec.structs.replace(cost, forward_ns=2 * forward),)),
        gradient_norm_ns=(forward, forward),
        optimizer_step_ns=(forward, 3 * forward),
        layers=layers,
        origin="measured",
        spreads={
            f"s{stage}.c0.F": Spread(median=m, low=m - 1, high=m + 1, samples=40)
            for stage, m in enumerate((forward, 2 * forward))
        },
    )


NODES = {"a": profile(1.0), "b": profile(1.05), "c": profile(1.5)}


def test_a_placed_stage_costs_what_its_node_takes() -> None:
    costs = costs_of_nodes(NODES, ["c", "a"])
    assert [row[0].forward_ns for row in costs.blocks] == [150, 200]
    assert costs.optimizer_step_ns == (150, 300)
    assert {name: spread.median for name, spread in costs.spreads.items()} == {"s0.c0.F": 150, "s1.c0.F": 200}
    assert costs.environment["nodes"] == "stage 0 on c, stage 1 on a"


def test_without_placement_it_is_the_median_with_the_range_between_nodes() -> None:
    costs = costs_of_nodes(NODES)
    assert [row[0].forward_ns for row in costs.blocks] == [105, 210]
    assert costs.gradient_norm_ns == (105, 105)
    assert costs.spreads["s1.c0.F"] == Spread(median=210, low=200, high=300, samples=3, interval="range")
    assert costs.environment["nodes"] == "median of 3 nodes: a, b, c"


def test_a_node_slower_than_its_peers_is_named() -> None:
    (found,) = costs_of_nodes(NODES).findings
    assert found.name == "slow_node"
    assert found.detail == "c's blocks take 1.46 times as long as those of its peers"  # 150 / 102.5
    assert slow_nodes({"a": profile(1.0), "b": profile(1.05)}) == []
    assert slow_nodes({"a": profile(1.0)}) == []
    (of_two,) = slow_nodes({"a": profile(1.0), "b": profile(1.2)})
    assert of_two.detail == "b's blocks take 1.20 times as long as those of its peers"


def test_every_block_is_held_against_the_other_nodes() -> None:
    found = against_peers({**NODES, "alone": msgspec.structs.replace(NODES["a"], spreads={})})
    assert found["c"] == {"s0.c0.F": pytest.approx(150 / 102.5), "s1.c0.F": pytest.approx(300 / 205)}
    assert found["b"] == {"s0.c0.F": pytest.approx(105 / 125), "s1.c0.F": pytest.approx(210 / 250)}
    assert found["alone"] == {}


@pytest.mark.parametrize(
    ("nodes", "placement", "says"),
    [
        ({}, None, "no node was profiled"),
        ({"a": profile(1), "b": profile(1, ((2,), (0,)))}, None, r"nodes\.b"),
        (NODES, ["a"], "the costs are of 2 stages"),
        (NODES, ["a", "z"], "nodes = 'z': was not profiled; use one of a, b, c"),
    ],
)
def test_profiles_that_do_not_belong_together_are_refused(nodes, placement, says) -> None:
    with pytest.raises(FieldError, match=says):
        costs_of_nodes(nodes, placement)
