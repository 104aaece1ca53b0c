"""Putting a finished SVG into a page: no prolog, its own identifiers, a title for those who cannot see it.

Several SVGs in one page share one name space, so every identifier gets a prefix; the ink of text and axes becomes the
page's own text colour and the background goes, so that dark mode and print look right.
"""

from __future__ import annotations

import re

from crosspipe.report.figures import INK, PAPER
from crosspipe.report.markup import Markup, tag

_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')


def embedded(svg: str, prefix: str, title: str, description: str = "") -> Markup:
    """`svg` as an element of the page: role img, labelled by `title` and `description`; the ink follows the page."""
    root = re.search(r"<svg\b[^>]*>", svg)
    if root is None:
        raise ValueError("no <svg> element in the picture")
    opening = re.sub(r'\s(?:width|height|role|aria-[a-z]+|version|xmlns(?::\w+)?)="[^"]*"', "", root[0])
    inside = re.sub(
        r"^\s*(?:<metadata>.*?</metadata>|<title\b.*?</title>|<desc\b.*?</desc>)", "", svg[root.end() :], flags=re.S
    )
    inside = (
        _REFERENCE.sub(lambda found: f"{found[1]}{prefix}-", inside)
        .replace(INK, "currentColor")
        .replace(f"fill: {PAPER}", "fill: none")
    )
    inside = inside.replace("xlink:href", "href")
    labels = tag("title", title, id=f"{prefix}-title") + (
        tag("desc", description, id=f"{prefix}-desc") if description else ""
    )
    ids = f"{prefix}-title {prefix}-desc" if description else f"{prefix}-title"
    return Markup(opening[:-1] + f' role="img" aria-labelledby="{ids}">' + labels + inside.strip())
