"""The report's page: one self-contained HTML file that needs no network, and no script or font from elsewhere.

This file is the page's frame and order; its sections are in `sections` (what came out), `gantt`, `evidence` (what is
proven, how the runs kept to it), `links`, `profiles` (of the blocks), `over_time` and `provenance`. A content security
policy forbids the page to load anything, and to run anything but the script that draws the Gantt pictures.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from crosspipe.report import evidence, sections
from crosspipe.report.figures import Picture
from crosspipe.report.gantt import gantt_section
from crosspipe.report.links import link_section
from crosspipe.report.markup import Content, Markup, tag
from crosspipe.report.measurements import Measurements
from crosspipe.report.over_time import changes_in_words, over_time
from crosspipe.report.profiles import block_section
from crosspipe.report.provenance import columns, provenance
from crosspipe.report.results import Results
from crosspipe.report.tables import SummaryTable

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{script}'"


def page(
    results: Results,
    rows: Sequence[dict[str, Any]],
    table: SummaryTable,
    measurements: Measurements,
    drawn: Mapping[str, Sequence[Picture]],
) -> str:
    """The whole page; `rows` are the points in the order to show, `drawn` the pictures by section."""
    artifacts = results.artifacts
    parts: list[tuple[str, str, Content]] = [
        ("summary", "Summary", [sections.summary(results, rows), _changed(measurements)]),
        ("results", "Results", [table.to_html(), sections.reading_the_table(rows)]),
        ("figures", "Figures", sections.figures(drawn["figures"])),
        ("findings", f"Findings ({len(results.findings)})", sections.findings(results)),
        ("schedules", "Schedules", gantt_section(artifacts, rows)),
        ("certificates", "Certificates", evidence.certificates(artifacts, rows)),
        ("execution", "Execution", evidence.execution(rows)),
        ("links", "Links", link_section(measurements.links, artifacts, rows, drawn["links"])),
        ("blocks", "Blocks", block_section(measurements.blocks, measurements.nodes, drawn["blocks"])),
        ("history", "Over time", over_time(measurements, drawn["history"])),
        ("provenance", "Provenance", provenance(results, rows)),
        ("columns", "Columns", columns()),
    ]
    name = results.campaign.name
    script = _part("gantt.js")
    body = [
        tag("a", "Skip to the results", href="#results", class_="skip"),
        tag(
            "header",
            tag("h1", name),
            tag("p", sections.subtitle(results, rows), class_="soft"),
            tag(
                "nav",
                tag("ul", *(tag("li", tag("a", title, href=f"#{key}")) for key, title, _ in parts)),
                aria_label="Sections",
            ),
        ),
        tag(
            "main",
            *(
                tag("section", tag("h2", title, id=f"{key}-heading"), content, id=key, aria_labelledby=f"{key}-heading")
                for key, title, content in parts
            ),
        ),
        tag(
            "footer",
            tag("p", f"Made by CrossPipe on {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}.", class_="soft"),
        ),
        tag("script", Markup(script)),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY.format(script=_hash(script))),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name} – CrossPipe report"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(_part("page.css"))),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), tag("body", *body), lang="en") + "\n"


def _changed(measurements: Measurements) -> Content:
    words = changes_in_words(measurements)
    return None if words is None else tag("p", tag("a", words, href="#history"))


def _part(name: str) -> str:
    """A file of this package that goes into the page as it is."""
    return files("crosspipe.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What a content security policy calls the script it allows."""
    return base64.b64encode(sha256(script.encode()).digest()).decode()
