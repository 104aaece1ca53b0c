"""The page's section about the model's blocks: what each costs, on which node, and which operators take the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from crosspipe.problem import BlockCosts
from crosspipe.problem.nodes import SLOW, NodeProfiles, against_peers
from crosspipe.report import measured_prose as prose
from crosspipe.report.figures import Picture
from crosspipe.report.markup import Content, folded, table, tag
from crosspipe.report.measurements import Profile
from crosspipe.report.sections import figures
from crosspipe.report.wording import MISSING, duration, number, size


def block_section(
    profiles: Sequence[Profile[BlockCosts]], nodes: Mapping[str, NodeProfiles], drawn: Sequence[Picture]
) -> Content:
    """F, D and W of each (stage, chunk) as profiled, before pacing, what follows the pipeline, the nodes, operators."""
    if not profiles:
        return tag("p", "No block profile is in the store for this campaign.", class_="missing")
    parts: list[Content] = [figures(drawn) if drawn else None]
    for profile in profiles:
        costs, name = profile.now.found, profile.now.short
        on_nodes = nodes.get(profile.now.reference)
        parts += [_blocks(name, costs), _after(costs), None if on_nodes is None else _nodes(name, on_nodes)]
        parts.append(_kernels(name, costs))
    return parts


def _blocks(name: str, costs: BlockCosts) -> Content:
    head = ["stage, chunk", "layers", "F ms", "D ms", "W ms", "kept after F", "released by D", "released by W"]
    head += ["message forward", "message backward"]
    lines = []
    for stage, row in enumerate(costs.blocks):
        for chunk, cost in enumerate(row):
            times = (_profiled(costs, f"s{stage}.c{chunk}.{kind}", cost.duration_ns(kind)) for kind in "FDW")
            memory = (cost.forward_keep_bytes, cost.input_grad_release_bytes, cost.weight_grad_release_bytes)
            messages = (cost.forward_message_bytes, cost.backward_message_bytes)
            layers = costs.layers[stage][chunk] if costs.layers else MISSING
            lines.append([f"{stage}, {chunk}", layers, *times, *map(size, memory + messages)])
    caption = f"Block costs before pacing, {costs.origin}, artifact {name}; {_interval_words(costs)}"
    return folded(table(head, lines, caption=caption, text=()), len(lines), "block costs")


def _interval_words(costs: BlockCosts) -> str:
    if any(spread.interval == "range" for spread in costs.spreads.values()):
        return "medians over the nodes [smallest, largest]"
    return "medians [95 %]"


def _profiled(costs: BlockCosts, name: str, duration_ns: int) -> str:
    spread, text = costs.spreads.get(name), number(duration_ns / 1e6)
    if spread is None or spread.low is None or spread.high is None:
        return text
    return f"{text} [{number(spread.low / 1e6)}, {number(spread.high / 1e6)}]"


def _after(costs: BlockCosts) -> Content:
    """What follows the pipeline on each stage; None where it was not profiled."""
    columns = {
        "gradient norm ms": [number(t / 1e6) for t in costs.gradient_norm_ns],
        "optimizer step ms": [number(t / 1e6) for t in costs.optimizer_step_ns],
        "parameters": [size(b) for b in costs.parameter_bytes],
    }
    known = {name: values for name, values in columns.items() if values}
    if not known:
        return None
    lines = [[str(stage), *values] for stage, values in enumerate(zip(*known.values(), strict=True))]
    shown = table(["stage", *known], lines, caption="After the pipeline, before pacing", text=())
    return folded(shown, len(lines), "stages")


def _nodes(name: str, nodes: NodeProfiles) -> Content:
    """What each node takes for F, D and W of all blocks, and against the median of the others."""
    lines: list[list[Content]] = []
    for node, ratios in against_peers(nodes.by_node).items():
        whole_ns = sum(c.duration_ns(kind) for row in nodes.by_node[node].blocks for c in row for kind in "FDW")
        cells: list[Content] = [node, number(whole_ns / 1e6), MISSING, MISSING, ""]
        if ratios:
            score = median(ratios.values())
            span = f"{min(ratios.values()):.3f} to {max(ratios.values()):.3f}"
            cells[2:] = [f"{score:.3f}", span, tag("strong", "slow") if score >= SLOW else "as its peers"]
        lines.append(cells)
    head = ["node", "F + D + W ms", "over its peers'", "least to most of its blocks", "verdict"]
    caption = f"Nodes, artifact {name}: the same blocks on each; a node a tenth slower than its peers is slow"
    shown = table(head, lines, caption=caption, text=("verdict",))
    return folded(shown, len(lines), "nodes")


def _kernels(name: str, costs: BlockCosts) -> Content:
    """The operators of each block by their own time; None where none were recorded."""
    lines = [
        [
            place.removeprefix("s").replace(".c", ", "), kernel.operator, kernel.calls, duration(kernel.time_ns),
            f"{100 * kernel.share:.1f} %", MISSING if kernel.flops is None else number(kernel.flops / 1e9),
            MISSING if kernel.flops_per_s is None else number(kernel.flops_per_s / 1e9),
        ]
        for place, kernels in costs.kernels.items()
        for kernel in kernels
    ]  # fmt: skip
    if not lines:
        return None
    head = ["stage, chunk", "operator", "calls", "own time", "share", "GFLOP", "GFLOP/s"]
    caption = f"Operators of F, D and W of one microbatch, artifact {name}"
    shown = table(head, lines, caption=caption, text=("operator",))
    return [tag("h3", "Operators"), tag("p", prose.KERNELS, class_="soft"), folded(shown, len(lines), "operators")]
