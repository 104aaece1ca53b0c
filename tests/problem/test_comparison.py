"""Changes between measurements, with intervals laid out by hand."""

import msgspec

from crosspipe.problem import BlockCost, BlockCosts, Link, LinkTable, Spread
from crosspipe.problem.comparison import Change, compare_blocks, compare_links
from crosspipe.problem.links import Stream


def around(median: float, half: float) -> Spread:
    return Spread(median=median, low=median - half, high=median + half, samples=20)


def table(latency_ns: int, half: float, *, beta: float = 1.0, nodes: tuple[str, ...] = ("a", "b")) -> LinkTable:
    return LinkTable(
        links=tuple(
            Link(
                source=source,
                target=1 - source,
                transport="gloo",
                latency_ns=latency_ns,
                bandwidth_bytes_per_s=round(1e9 / beta),
                latency=around(latency_ns, half),
                inverse_bandwidth=around(beta, 0.01),
            )
            for source in (0, 1)
        ),
        site_of_rank=(0, 1),
        node_of_rank=nodes,
    )


def changed(changes: tuple[Change, ...]) -> dict[tuple[str, str], float | None]:
    return {(change.what, change.unit): change.ratio for change in changes if change.beyond_noise}


def test_a_link_that_became_slower_is_told_by_how_much() -> None:
    found = compare_links([table(1000, 20)], table(1500, 30))
    assert changed(found) == {
        ("gloo site 0 -> 1", "ns"): 1.5,
        ("gloo site 1 -> 0", "ns"): 1.5,
        ("gloo 0 (a) -> 1 (b)", "ns"): 1.5,
        ("gloo 1 (b) -> 0 (a)", "ns"): 1.5,
    }
    assert {change.unit for change in found} == {"ns", "ns/byte"}
    assert len(found) == 8


def test_a_window_that_carries_less_is_told() -> None:
    def carrying(rate: float) -> LinkTable:
        small, large = (
            Stream(pattern="one_way", size_bytes=size, window=64, bytes_per_s=around(bytes_per_s, 1e6))
            for size, bytes_per_s in ((2**10, 1e7), (2**20, rate))
        )
        links = (msgspec.structs.replace(x, streams=(large, small) if x.source == 0 else ()) for x in table(9, 1).links)
        return msgspec.structs.replace(table(9, 1), links=tuple(links))

    assert changed(compare_links([carrying(1e8)], carrying(5e7))) == {
        ("gloo site 0 -> 1", "bytes/s"): 0.5,
        ("gloo 0 (a) -> 1 (b)", "bytes/s"): 0.5,
    }


def test_what_overlaps_or_moves_little_is_noise() -> None:
    link = ("gloo 0 (a) -> 1 (b)", "ns")
    assert changed(compare_links([table(1000, 100)], table(1150, 100))) == {}  # 900-1100 and 1050-1250, sites too
    assert link not in changed(compare_links([table(1000, 5)], table(1040, 5)))  # apart, by 4 %
    assert link in changed(compare_links([table(1000, 5)], table(1060, 5)))


def test_history_widens_what_counts_as_noise() -> None:
    link = ("gloo 0 (a) -> 1 (b)", "ns")
    once, before = table(1400, 20), table(1000, 20)
    assert link in changed(compare_links([before], table(1380, 20)))
    assert link not in changed(compare_links([once, before], table(1380, 20)))  # it has been like that before
    assert compare_links([once, before], table(1380, 20))[4].before == around(1000, 20)  # the newest


def test_other_nodes_are_other_links_but_the_same_sites() -> None:
    found = compare_links([table(1000, 20)], table(1500, 30, nodes=("a", "c")))
    assert set(changed(found)) == {("gloo site 0 -> 1", "ns"), ("gloo site 1 -> 0", "ns")}
    assert [c.what for c in found if c.before is None and c.unit == "ns"] == [
        "gloo 0 (a) -> 1 (c)",
        "gloo 1 (c) -> 0 (a)",
    ]
    assert [c.what for c in found if c.after is None and c.unit == "ns"] == [
        "gloo 0 (a) -> 1 (b)",
        "gloo 1 (b) -> 0 (a)",
    ]


def test_nothing_earlier_is_no_change() -> None:
    assert changed(compare_links([], table(1000, 20))) == {}


def test_blocks_are_compared_by_name_and_only_of_the_same_split() -> None:
    cost = BlockCost(
        forward_ns=100,
        input_grad_ns=1,
        weight_grad_ns=1,
        forward_keep_bytes=64,
        input_grad_release_bytes=64,
        weight_grad_release_bytes=0,
    )
    before = BlockCosts(blocks=((cost,),), layers=((2,),), spreads={"s0.c0.F": around(100, 2)})
    after = msgspec.structs.replace(
        before,
        blocks=((msgspec.structs.replace(cost, forward_keep_bytes=32, input_grad_release_bytes=32),),),
        spreads={"s0.c0.F": around(80, 2)},
    )
    assert changed(compare_blocks([before], after)) == {("s0.c0.F", "ns"): 0.8, ("s0.c0 kept", "bytes"): 0.5}
    assert changed(compare_blocks([msgspec.structs.replace(before, layers=((3,),))], after)) == {}
