"""The page as a browser and a screen reader get it: whole, escaped, labelled, self-contained."""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import json
import re
from collections import Counter
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.report import Report, build_report, gantt
from crosspipe.report.markup import VOID, Markup, table, tag
from crosspipe.report.svg import embedded


class Outline(HTMLParser):
    """Elements with their attributes, text by element, and every end tag checked against its start."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.open: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append((self.open[-1], data.strip()))


@pytest.fixture(scope="module")
def report(shared_campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report(shared_campaign, out=tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def outline(report: Report) -> Outline:
    parser = Outline()
    parser.feed(report.path.read_text(encoding="utf-8"))
    return parser


def test_every_element_is_closed(outline: Outline) -> None:
    assert outline.open == []


def test_nothing_is_loaded_and_nothing_runs(report: Report, outline: Outline) -> None:
    names = Counter(name for name, _ in outline.elements)
    assert names["img"] == names["iframe"] == 0
    scripts = [a for n, a in outline.elements if n == "script"]
    assert len(scripts) == 4 + 1  # the data of four pictures, which the browser does not run, and what draws them
    assert [a.get("type") for a in scripts].count("application/json") == 4
    ours = files("crosspipe.report").joinpath("gantt.js").read_bytes()
    allowed = base64.b64encode(hashlib.sha256(ours).digest()).decode()
    assert f"script-src &#x27;sha256-{allowed}&#x27;" in report.path.read_text(encoding="utf-8")
    for name, attributes in outline.elements:
        assert not attributes.get("src")
        if attributes.get("href"):
            assert attributes["href"].startswith("#") or name in ("link", "image")
            assert attributes["href"].startswith(("#", "data:,", "data:image/png;base64,"))
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org)", report.path.read_text(encoding="utf-8"))


def test_identifiers_are_unique_and_every_reference_is_met(outline: Outline) -> None:
    ids = Counter(a["id"] for _, a in outline.elements if a.get("id"))
    assert {name for name, count in ids.items() if count > 1} == set()
    for _, attributes in outline.elements:
        for name in ("href", "aria-labelledby"):
            for reference in (attributes.get(name) or "").split():
                if name == "aria-labelledby" or reference.startswith("#"):
                    assert reference.removeprefix("#") in ids
        for reference in re.findall(r"url\(#([^)]*)\)", " ".join(v or "" for v in attributes.values())):
            assert reference in ids


def test_labels_with_markup_are_text(report: Report, outline: Outline) -> None:
    text = report.path.read_text(encoding="utf-8")
    assert "tiny<b>" not in text
    assert "hand <made>" not in text
    assert ("h1", "hand <made>") in outline.text
    assert any('tiny<b>"&' in words for _, words in outline.text)
    assert any("the memory of <one> node" in words for _, words in outline.text)


def test_pictures_and_tables_are_labelled_and_reachable(outline: Outline) -> None:
    outer = [a for n, a in outline.elements if n == "svg" and a.get("role") == "img"]
    assert len(outer) == 3  # the figures; the pictures of schedules are drawn in the browser
    assert all(a["aria-labelledby"] for a in outer)
    regions = [a for n, a in outline.elements if n == "div" and a.get("role") == "region"]
    captions = [words for name, words in outline.text if name == "caption"]
    assert len(regions) == len(captions) == Counter(n for n, _ in outline.elements)["table"]
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in regions)


def test_gantt_pictures_hold_the_predicted_and_the_measured_timeline(outline: Outline) -> None:
    labels = [a["data-label"] or "" for _, a in outline.elements if a.get("data-label")]
    assert [x.partition(": ")[2] for x in labels if x.startswith("Gantt picture of 1f1b")] == [
        f"makespan predicted (simulated) {ms} ms, measured (emulated) {ms} ms" for ms in ("90.00", "110.0")
    ]
    data = [json.loads(words) for name, words in outline.text if name == "script" and words.startswith("{")]
    assert [[t["name"] for t in d["timelines"]] for d in data] == [["predicted", "measured"]] * 4
    # 1F1B with a delay of 10 ms: stage 1 waits 20 ms, then runs F0 and B0, F1 and B1 back to back
    late = next(d for d in data if d["timelines"][0]["makespan"] * d["unit_ns"] == 110_000_000)
    ms = 1_000_000 // late["unit_ns"]
    row = late["timelines"][0]["rows"][1]
    assert row[:12] == [0, 0, 0, -1, 20 * ms, 10 * ms, 3, 0, 0, -1, 0, 20 * ms]
    assert row[12:] == [0, 0, 1, -1, 0, 10 * ms, 3, 0, 1, -1, 0, 20 * ms]
    # it takes a microbatch of 1 MiB at each F and gives it back at the end of each B
    unit = late["memory_unit_bytes"]
    held = [round(x * unit / 2**20, 2) for x in late["timelines"][0]["memory"][1][1::2]]
    assert held == [1, 0, 1, 0]
    # two microbatches cross the sites, forward from the end of F, backward from the end of B, 10 ms each
    messages = late["timelines"][0]["messages"]
    assert messages[:4] == [0, 1, 10 * ms, 20 * ms]
    assert len(messages) == 4 * 4


def test_pictures_stop_at_the_budget(shared_campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "DATA_BUDGET_BYTES", 1)
    text = build_report(shared_campaign, out=tmp_path).path.read_text(encoding="utf-8")
    assert text.count("left out to keep this page small") == 3  # the first is drawn, four were solved


def test_a_damaged_timeline_file_costs_its_picture_only(campaign: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "store" / "run").glob("*/timelines.parquet"):
        path.write_bytes(b"PAR1 nonsense")
    text = build_report(campaign).path.read_text(encoding="utf-8")
    assert text.count("cannot be drawn: ") == 4
    assert "113.7 [113.1, 114.3]" in text


def test_headings_do_not_skip_a_level(outline: Outline) -> None:
    levels = [int(n[1]) for n, _ in outline.elements if re.fullmatch(r"h[1-6]", n)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_summary_says_what_came_out(outline: Outline) -> None:
    words = " ".join(text for _, text in outline.text)
    assert "7 points: 3 done, 1 cached, 1 failed, 1 blocked and 1 waiting." in words
    assert "delay (1, 0): zbh1 is the fastest of 2, 93.70 [93.10, 94.30] ms measured; it is static" in words
    assert "the median of the absolute error over 4 points is 0.75 %, the largest 0.96 %" in words
    assert "injected from the same alpha–beta model" in words
    assert "paced at 4 × the profiled block times" in words
    assert "stage 1 cannot begin before 20 ms" in words


def test_profiles_show_every_transport_and_block(outline: Outline) -> None:
    cells = [text for name, text in outline.text if name in ("td", "th")]
    assert cells.count("mpi") == cells.count("gloo") == 2 + 2  # every link, and every pair of sites
    assert "81.00 µs to 99.00 µs" in cells  # 90 µs, low 0.9, high 1.1
    assert "16.00 Gbit/s" in cells  # 2e9 bytes/s
    assert "2.500 [2.400, 2.700]" in cells
    assert "node0" in " ".join(cells)


def test_what_is_missing_is_said(campaign: Path, tmp_path: Path) -> None:
    for stage in ("run", "solve", "links", "blocks"):
        for done in (tmp_path / "store" / stage).glob("*/done.json"):
            done.unlink()
        report = build_report(campaign)
        text = report.path.read_text(encoding="utf-8")
        if stage == "run":
            assert "No run has finished yet" in text
            assert "No run has been measured yet" in text
    assert "No schedule has been solved yet" in text
    assert "No link profile is in the store" in text
    assert "No block profile is in the store" in text
    assert {row.cells[0] for row in report.table.rows} == {"1f1b", "zbh1", "gpipe", "cross_ud", "zbh2"}


def test_files_beside_the_page(report: Report) -> None:
    found = sorted(str(p.relative_to(report.path.parent)) for p in report.path.parent.rglob("*") if p.is_file())
    assert found == [
        "dictionary.csv", "figures/agreement.svg", "figures/delay.svg", "figures/links.svg",
        "iterations.csv", "iterations.parquet",
        "report.html", "results.csv", "results.parquet", "summary.md",
    ]  # fmt: skip


def test_figures_say_what_their_numbers_are(report: Report) -> None:
    for name in ("agreement", "delay"):
        svg = (report.path.parent / "figures" / f"{name}.svg").read_text()
        assert "simulated" in svg
        assert "emulated" in svg
        assert "(ms)" in svg


def test_out_may_name_the_file(shared_campaign: Path, tmp_path: Path) -> None:
    assert build_report(shared_campaign, out=tmp_path / "out" / "mine.html").path == tmp_path / "out" / "mine.html"
    assert (tmp_path / "out" / "results.parquet").exists()


def test_a_full_disk_leaves_what_was_there(
    shared_campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build_report(shared_campaign, out=tmp_path / "out").path.read_bytes()
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "summary.md":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for out in ("out", "new"):
        with pytest.raises(ArtifactError, match=r"summary\.md: the report cannot be written \(No space left.*-o"):
            build_report(shared_campaign, out=tmp_path / out)
    assert (tmp_path / "out" / "report.html").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # no half-written folder


def test_strict_fails_after_writing(shared_campaign: Path, tmp_path: Path) -> None:
    with pytest.raises(CrosspipeError, match=r"report\.html: 3 findings, the first shared_memory: ranks 0 and 1"):
        build_report(shared_campaign, out=tmp_path / "out", strict=True)
    assert (tmp_path / "out" / "report.html").exists()


def test_the_summary_leads_to_the_findings_which_stand_below_the_results(report: Report, outline: Outline) -> None:
    page = report.path.read_text(encoding="utf-8")
    assert '<a href="#findings">3 findings give reason to distrust a number</a>' in page
    sections = [attributes["id"] for name, attributes in outline.elements if name == "section"]
    assert sections[:4] == ["summary", "results", "figures", "findings"]


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", 'a<b> & "c"', Markup("<br>"), class_='"x"') == (
        '<p class="&quot;x&quot;">a&lt;b&gt; &amp; &quot;c&quot;<br></p>'
    )
    assert tag("details", None, [1, 2.5], open=True) == "<details open>12.5</details>"
    assert tag("meta", http_equiv="x", id=None) == '<meta http-equiv="x">'


def test_numbers_are_set_apart_from_words() -> None:
    written = table(["name", "ms", "why"], [["1f1b", "12.5", "<fast>"]], caption="c", text=["why"])
    assert '<th scope="row">1f1b</th><td class="number">12.5</td><td>&lt;fast&gt;</td>' in written


def test_an_embedded_picture_is_renamed_labelled_and_takes_the_page_s_ink() -> None:
    svg = (
        '<?xml version="1.0"?>\n<svg width="9pt" height="3pt" viewBox="0 0 9 3" xmlns="http://www.w3.org/2000/svg">'
        '<defs><path id="m" d="M0 0"/></defs><use xlink:href="#m" fill="#1b1e23" clip-path="url(#m)"/></svg>'
    )
    assert embedded(svg, "p", "A < B") == (
        '<svg viewBox="0 0 9 3" role="img" aria-labelledby="p-title"><title id="p-title">A &lt; B</title>'
        '<defs><path id="p-m" d="M0 0"/></defs><use href="#p-m" fill="currentColor" clip-path="url(#p-m)"/></svg>'
    )
