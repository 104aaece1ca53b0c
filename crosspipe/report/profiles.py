"""The page's sections about what was profiled: links over every transport, and the model's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crosspipe.problem import BlockCosts, Link, LinkTable, Problem, Spread
from crosspipe.report.artifacts import PointArtifacts
from crosspipe.report.markup import Content, folded, table, tag
from crosspipe.report.wording import MISSING, duration, number, size


def link_tables(artifacts: Mapping[str, PointArtifacts], rows: Sequence[dict[str, Any]]) -> Content:
    """What crossing sites cost in each problem, and every measured link over every transport."""
    parts: list[Content] = [_crossing(artifacts, rows)]
    profiles = _distinct((a.point.keys.get("links"), a.links) for a in artifacts.values())
    if not profiles:
        parts.append(tag("p", "No link profile is in the store for this campaign.", class_="missing"))
    head = ["link", "across sites", "transport", "latency (alpha)", "95 % interval", "bandwidth (1/beta)", "misfit"]
    for key, links in profiles:
        lines = [_link_row(links, link) for link in links.links]
        caption = f"Measured links, artifact links/{key[:12]}; the run's transport is {links.run_transport}"
        shown = table(head, lines, caption=caption, text=("across sites", "transport"))
        parts.append(folded(shown, len(lines), "measured links"))
    return parts


def _crossing(artifacts: Mapping[str, PointArtifacts], rows: Sequence[dict[str, Any]]) -> Content:
    """The problems' delays in ms and, for their largest message, in Gbit/s; None where no problem is known."""
    lines: dict[tuple[str, ...], None] = {}
    for row in rows:
        problem = artifacts[row["point"]].problem
        if problem is None:
            continue
        message_bytes, serialisation_ms = _message_bytes(problem), row["serialisation_ms"]
        rate = number(message_bytes * 8 / serialisation_ms / 1e6) if serialisation_ms and message_bytes else MISSING
        times = (number(row[n]) for n in ("forward_reference_ms", "latency_ms", "serialisation_ms"))
        lines[(row["delay"], *times, size(message_bytes), rate)] = None
    if not lines:
        return None
    head = ["delay", "T_F ms", "latency ms", "serialisation ms", "largest message", "equals Gbit/s"]
    caption = "What a message across sites costs in the problems solved, at the pace of the run"
    return folded(table(head, list(lines), caption=caption, text=("delay",)), len(lines), "problems")


def _message_bytes(problem: Problem) -> int:
    """Largest message that crosses sites, in bytes."""
    sizes = [0]
    for position in range(problem.positions):
        stage, chunk = problem.place(position)
        cost = problem.costs[stage][chunk]
        for kind, message_bytes in (("F", cost.forward_message_bytes), ("D", cost.backward_message_bytes)):
            if problem.crosses_sites(kind, position):
                sizes.append(message_bytes)
    return max(sizes)


def _link_row(links: LinkTable, link: Link) -> list[Content]:
    def place(rank: int) -> str:
        node = links.node_of_rank[rank] if links.node_of_rank else "node not recorded"
        return f"rank {rank} ({node}, site {links.site_of_rank[rank]})"

    crossing = links.site_of_rank[link.source] != links.site_of_rank[link.target]
    bandwidth = link.bandwidth_bytes_per_s
    return [
        f"{place(link.source)} → {place(link.target)}",
        "yes" if crossing else "no",
        link.transport,
        duration(link.latency_ns),
        _interval(link.latency),
        MISSING if bandwidth is None else f"{number(bandwidth * 8 / 1e9)} Gbit/s",
        f"{100 * link.residual:.1f} %",
    ]


def _interval(spread: Spread | None) -> str:
    if spread is None or spread.low is None or spread.high is None:
        return MISSING
    return f"{duration(spread.low)} to {duration(spread.high)}"


def block_costs(artifacts: Mapping[str, PointArtifacts]) -> Content:
    """F, D and W of each (stage, chunk) as profiled, before pacing, and what follows the pipeline."""
    profiles = _distinct((a.point.keys.get("blocks"), a.blocks) for a in artifacts.values())
    if not profiles:
        return tag("p", "No block profile is in the store for this campaign.", class_="missing")
    return [[_blocks(key, costs), _after(costs)] for key, costs in profiles]


def _blocks(key: str, costs: BlockCosts) -> Content:
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
    caption = f"Block costs before pacing, {costs.origin}, artifact blocks/{key[:12]}; {_interval_words(costs)}"
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


def _distinct(pairs: Iterable[tuple[str | None, Any]]) -> list[tuple[str, Any]]:
    """What there is under each key, once."""
    return list({key: value for key, value in pairs if key is not None and value is not None}.items())
