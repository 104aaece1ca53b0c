"""Pictures are measured, not compared with themselves: rectangles, numbers and scales are where the times put them."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from crosspipe.problem import Problem
from crosspipe.schedule import Block, Message, Schedule, TimedBlock, TimedMessage, Timeline, simulate
from crosspipe.schedule.drawing import draw_terminal, draw_timeline, gantt_svg, layout

SVG = "{http://www.w3.org/2000/svg}"


def tiny(**changes) -> Timeline:
    """Two sites of one stage, from 1000 ms on: F0 10 ms, message 20 ms, F0, D0 and W0 10 ms each."""
    ms = 1_000_000
    arguments = {
        "traversal": "ud",
        "stages": 2,
        "chunks": 1,
        "microbatches": 1,
        "sites": (0, 1),
        "blocks": (
            (TimedBlock(Block("F", 0, 0), 1000 * ms, 1010 * ms),),
            (
                TimedBlock(Block("F", 0, 0), 1030 * ms, 1040 * ms),
                TimedBlock(Block("D", 0, 0), 1040 * ms, 1050 * ms),
                TimedBlock(Block("W", 0, 0), 1050 * ms, 1060 * ms),
            ),
        ),
        "messages": (TimedMessage(Message("F", 0, 0), "0>1", 1010 * ms, 1010 * ms, 1015 * ms, 1030 * ms),),
        "memory": (((1000 * ms, 2**20),), ((1030 * ms, 2**20), (1060 * ms, 0))),
        **changes,
    }
    return Timeline(**arguments)


def bars(root: ET.Element) -> list[tuple[float, float, str]]:
    """(x, width, what its title says first) of every block."""
    return [
        (float(r.get("x")), float(r.get("width")), r.find(f"{SVG}title").text.split(":")[0])
        for r in root.iter(f"{SVG}rect")
        if r.find(f"{SVG}title") is not None
    ]


def test_what_replicas_exchange_stands_in_its_stage_row():
    """A gather over the first 20 ms of stage 1, a reduction of stage 0 from 40 to 60 ms."""
    ms = 1_000_000
    messages = (
        TimedMessage(Message("gather", 1, 0), None, 1000 * ms, 1000 * ms, 1010 * ms, 1020 * ms),
        TimedMessage(Message("reduce", 0, 0), None, 1040 * ms, 1040 * ms, 1050 * ms, 1060 * ms),
    )
    timeline = tiny(messages=messages)
    assert sorted(layout.exchanges(timeline)) == [(0, 40 * ms, 60 * ms), (1, 0, 20 * ms)]
    drawn = bars(ET.fromstring(gantt_svg({"": timeline}, width_px=686)))
    assert (0.0, 200.0, "gather or reduction of replicas, stage 1") in drawn
    assert (400.0, 200.0, "gather or reduction of replicas, stage 0") in drawn
    legend = draw_timeline(timeline, memory=True).legends[0]
    assert [text.get_text() for text in legend.get_texts()][3:] == [
        "gather, reduction of replicas",
        "activations, full height 1 MiB",
    ]


def test_svg_puts_every_block_at_its_time():
    root = ET.fromstring(gantt_svg({"predicted": tiny()}, width_px=686))  # 600 px for 60 ms
    assert bars(root) == [
        (0.0, 100.0, "F0 of chunk 0 on stage 0"),
        (300.0, 100.0, "F0 of chunk 0 on stage 1"),
        (400.0, 100.0, "D0 of chunk 0 on stage 1"),
        (500.0, 100.0, "W0 of chunk 0 on stage 1"),
    ]
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert "predicted (simulated): 60 ms" in texts
    assert {"site 0", "site 1", "time in ms"} <= set(texts)
    message = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("stroke-opacity") == "0.55"]
    assert len(message) == 1
    assert message[0].startswith("M100.0 ")
    assert "L300.0 " in message[0]


def test_svg_stacks_on_one_time_axis():
    slower = tiny(
        blocks=((TimedBlock(Block("F", 0, 0), 0, 120_000_000),), ()), messages=(), memory=(), origin="real link"
    )
    root = ET.fromstring(gantt_svg({"predicted": tiny(), "measured": slower}, width_px=686))
    assert [width for _, width, _ in bars(root)] == [50.0, 50.0, 50.0, 50.0, 600.0]
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert texts.index("predicted (simulated): 60 ms") < texts.index("measured (real link): 120 ms")


def test_svg_needs_nothing_from_outside():
    text = gantt_svg({"<a & b>": tiny()}, memory=True)
    assert "&lt;a &amp; b&gt;" in text
    for forbidden in ("<script", "<style", "href", "url(", "<image"):
        assert forbidden not in text


def test_memory_line_fills_its_strip_at_the_peak():
    root = ET.fromstring(gantt_svg({"": tiny()}, memory=True, width_px=686, row_px=20))
    filled = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("fill-opacity") == "0.18"]
    # strips are 14 high with 2 to spare; stage 1 begins at 20 + 14 + 3 and 8 for the other site
    assert filled == ["M0 34.0H0.0V22.0H600.0V34.0z", "M0 79.0H300.0V67.0H600.0V79.0H600.0V79.0z"]


def test_numbers_stand_only_where_they_fit():
    def numbers(width_px: int) -> int:
        root = ET.fromstring(gantt_svg({"": tiny()}, width_px=width_px))
        return sum(len(group) for group in root.iter(f"{SVG}g") if group.get("pointer-events") == "none")

    assert numbers(686) == 4  # 100 px each
    assert numbers(110) == 0  # 4 px each


def test_kinds_are_told_apart_without_colour():
    root = ET.fromstring(gantt_svg({"": tiny()}, width_px=686, row_px=25))
    labels = [t.text for g in root.iter(f"{SVG}g") if g.get("pointer-events") == "none" for t in g]
    assert labels == ["F0", "F0", "D0", "W0"]
    # bars are 22 high (a row of 25 less 12 %); stage 1 begins at 25 and 8 for the other site; edges are 12 % of a bar
    edges = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("stroke") == "#000000" and p.get("d")[0] == "M"]
    assert "M400.0 34.3h100.0M500.0 53.7h100.0" in edges  # D above, W below, F nowhere


def test_sixty_four_stages_stay_small_and_complete():
    problem = Problem.uniform(
        stages=64, microbatches=64, sites=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1, latency_ms=1
    )
    row = tuple(Block(kind, 0, mb) for kind in "FDW" for mb in range(64))
    schedule = Schedule(traversal="ud", stages=64, chunks=1, microbatches=64, orders=(row,) * 64)
    text = gantt_svg({"": simulate(problem, schedule)})
    assert len(text) < 600_000
    root = ET.fromstring(text)
    outlines = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("fill", "none").startswith("#")]
    assert sum(d.count("z") for d in outlines) == 64 * 64 * 3
    names = {t.text for t in root.iter(f"{SVG}text")}
    assert {str(stage) for stage in range(64)} <= names


@pytest.mark.parametrize("kind", layout.KIND_COLOURS)
@pytest.mark.parametrize("chunk", [0, 1, 2, 3])
def test_numbers_can_be_read_on_every_shade(kind, chunk):
    def luminance(colour: str) -> float:  # WCAG 2.2, definition of relative luminance
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    colour = layout.shade(kind, chunk, 4)
    bright, dark = sorted([luminance(colour), luminance(layout.ink_on(colour))], reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_shades_start_at_the_colour_and_get_lighter():
    assert layout.shade("F", 0, 2) == "#56b4e9"
    assert layout.shade("F", 1, 2) == "#bbe1f6"  # 60 % of the way to white: 0x56 + 0.6 * (255 - 0x56) = 0xbb


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_500, "1.5 µs"), (909_000_000, "909 ms"), (13_125_000_000, "13.12 s")],
)
def test_times_in_words(ns, text):
    assert layout.time_text(ns) == text


def test_ticks_are_round_and_few():
    assert layout.ticks(915_000_000) == [0, 200_000_000, 400_000_000, 600_000_000, 800_000_000]
    assert layout.ticks(7) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_figure_has_the_blocks_and_one_time_axis():
    figure = draw_timeline({"predicted": tiny(), "measured": tiny(origin="emulated")}, memory=True)
    upper, lower = figure.axes
    assert upper.get_title(loc="left") == "predicted (simulated): 60 ms"
    assert lower.get_title(loc="left") == "measured (emulated): 60 ms"
    assert upper.get_xlim() == lower.get_xlim()
    corners = [path.vertices for c in upper.collections[:3] for path in c.get_paths()]
    assert sorted((v[:, 0].min(), v[:, 0].max()) for v in corners) == [
        (0, 10_000_000),
        (30_000_000, 40_000_000),
        (40_000_000, 50_000_000),
        (50_000_000, 60_000_000),
    ]


def test_plot_writes_png_and_pdf():
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        out = io.BytesIO()
        tiny().plot().savefig(out, format=suffix)
        assert out.getvalue().startswith(magic)


def test_terminal_picture():
    out = io.StringIO()
    console = Console(file=out, width=38, no_color=True, legacy_windows=False)
    console.print(draw_terminal(tiny(), width=38))  # 30 columns for 60 ms
    assert [line.rstrip() for line in out.getvalue().splitlines()][:5] == [
        "simulated: 60 ms",
        "stage 0 F0",
        "        " + "┈" * 30,
        "stage 1                F0   D0   W0",
        "        ╵0 ms     ╵20 ms    ╵40 ms",
    ]
