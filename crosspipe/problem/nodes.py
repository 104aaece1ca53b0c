"""One profile from the profiles of many nodes: each stage costs what its own node takes, where that is known.

Where placement is not known yet, a stage costs the median over the nodes, and its spread is that between nodes. A node
slower than its peers is named: the pipeline waits for its slowest stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem.costs import BlockCost, BlockCosts
from crosspipe.problem.findings import Finding
from crosspipe.problem.spread import Spread

SLOW = 1.1
_TIMES = ("forward_ns", "input_grad_ns", "weight_grad_ns", "fused_backward_ns")


class NodeProfiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="node_profiles"):
    """The same profile as made on each node; on nodes with several devices, `node.device`."""

    schema: int = 1
    by_node: dict[str, BlockCosts]


def costs_of_nodes(by_node: Mapping[str, BlockCosts], node_of_stage: Sequence[str] | None = None) -> BlockCosts:
    """The costs of a pipeline from the same profile made on several nodes, with findings about slow ones.

    `node_of_stage[s]` is the node that stage s will run on; None: not known. Raises FieldError where the profiles are
    not of the same split, or a node was not profiled.
    """
    if not by_node:
        raise FieldError("nodes", None, "no node was profiled", "profile one at least")
    first = next(iter(by_node.values()))
    for node, costs in by_node.items():
        if (costs.layers, costs.traversal) != (first.layers, first.traversal):
            raise FieldError(
                f"nodes.{node}", costs.layers, f"is not the split of the others, {first.layers}", "profile one split"
            )
    if node_of_stage is None:
        merged = _median_of(list(by_node.values()))
        placed = f"median of {len(by_node)} nodes: {', '.join(by_node)}"
    else:
        merged = _placed(by_node, node_of_stage)
        placed = ", ".join(f"stage {stage} on {node}" for stage, node in enumerate(node_of_stage))
    return msgspec.structs.replace(
        merged, findings=tuple(slow_nodes(by_node)), environment={**merged.environment, "nodes": placed}
    )


def slow_nodes(by_node: Mapping[str, BlockCosts]) -> list[Finding]:
    """`slow_node`: nodes whose blocks take a tenth longer than the median of the others, or more, in the median."""
    said = [
        f"{node}'s blocks take {score:.2f} times as long as those of its peers"
        for node, ratios in against_peers(by_node).items()
        if ratios and (score := median(ratios.values())) >= SLOW
    ]
    return [Finding(name="slow_node", detail="; ".join(said))] if said else []


def against_peers(by_node: Mapping[str, BlockCosts]) -> dict[str, dict[str, float]]:
    """By node and duration (`s1.c0.F`): the node's median over the median of the other nodes'."""
    found: dict[str, dict[str, float]] = {}
    for node, costs in by_node.items():
        others = [other.spreads for name, other in by_node.items() if name != node]
        ratios = found.setdefault(node, {})
        for name, spread in costs.spreads.items():
            peers = [spreads[name].median for spreads in others if name in spreads]
            if peers and (usual := median(peers)) > 0:
                ratios[name] = spread.median / usual
    return found


def _placed(by_node: Mapping[str, BlockCosts], node_of_stage: Sequence[str]) -> BlockCosts:
    first = next(iter(by_node.values()))
    if len(node_of_stage) != first.stages:
        raise FieldError("nodes", len(node_of_stage), f"the costs are of {first.stages} stages", "name one a stage")
    missing = [node for node in node_of_stage if node not in by_node]
    if missing:
        raise FieldError("nodes", missing[0], "was not profiled", f"use one of {', '.join(by_node)}")
    own = [by_node[node] for node in node_of_stage]
    return msgspec.structs.replace(
        first,
        blocks=tuple(costs.blocks[stage] for stage, costs in enumerate(own)),
        gradient_norm_ns=_own([costs.gradient_norm_ns for costs in own]),
        optimizer_step_ns=_own([costs.optimizer_step_ns for costs in own]),
        spreads=_by_stage("spreads", own),
        kernels=_by_stage("kernels", own),
    )


def _own(per_stage: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Each stage's own value; none where one is not known."""
    return tuple(values[stage] for stage, values in enumerate(per_stage)) if all(per_stage) else ()


def _by_stage(field: str, own: Sequence[BlockCosts]) -> dict[str, object]:
    """The entries of each stage, `s2` or `s2.…`, from its own costs."""
    return {
        name: value
        for stage, costs in enumerate(own)
        for name, value in getattr(costs, field).items()
        if name.partition(".")[0] == f"s{stage}"
    }


def _median_of(costs: Sequence[BlockCosts]) -> BlockCosts:
    first = costs[0]
    return msgspec.structs.replace(
        first,
        blocks=tuple(
            tuple(_median_block([one.blocks[stage][chunk] for one in costs]) for chunk in range(first.chunks))
            for stage in range(first.stages)
        ),
        gradient_norm_ns=_medians([one.gradient_norm_ns for one in costs]),
        optimizer_step_ns=_medians([one.optimizer_step_ns for one in costs]),
        spreads={
            name: _between([one.spreads[name].median for one in costs if name in one.spreads]) for name in first.spreads
        },
    )


def _median_block(blocks: Sequence[BlockCost]) -> BlockCost:
    times: dict[str, int] = {}
    for name in _TIMES:
        known = [value for block in blocks if (value := getattr(block, name)) is not None]
        if known:
            times[name] = round(median(known))
    return msgspec.structs.replace(blocks[0], **times)


def _medians(per_node: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(round(median(values)) for values in zip(*per_node, strict=True))


def _between(medians: Sequence[float]) -> Spread:
    """Median over nodes and the range between them; `samples` are nodes."""
    return Spread(median=median(medians), low=min(medians), high=max(medians), samples=len(medians), interval="range")
