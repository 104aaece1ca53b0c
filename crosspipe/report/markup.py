"""HTML as values: elements are built by functions, and text is escaped unless it already is markup.

Not a template engine: a page is an expression, so nothing can be left unescaped by forgetting a filter. The idea is
that of htpy and MarkupSafe, in the few lines this report needs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

VOID = frozenset({"meta", "link", "br", "col", "hr"})

Content = Union[str, int, float, None, "Markup", Iterable["Content"]]


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def render(content: Content) -> Markup:
    """`content` as HTML: text escaped, markup as it is, lists joined, None as nothing."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, str | int | float):
        return Markup(html.escape(str(content), quote=True))
    return Markup("".join(map(render, content)))


def tag(name: str, *content: Content, **attributes: str | bool | None) -> Markup:
    """The element `name` around `content`.

    Attributes: a trailing underscore is dropped and others become hyphens (`class_`, `aria_label`); True gives a bare
    attribute, False and None none.
    """
    written = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written += f" {key}" if value is True else f' {key}="{html.escape(value, quote=True)}"'
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{render(content)}</{name}>")


def table(head: Iterable[Content], rows: Iterable[Iterable[Content]], *, caption: Content = None) -> Markup:
    """A table that scrolls sideways on its own: first cell of a row is its header; numbers are right-aligned.

    A cell whose text starts with a digit or sign counts as a number.
    """
    body = [tag("tr", *(_cell(cell, column == 0) for column, cell in enumerate(row))) for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))),
            tag("tbody", *body),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=html.unescape(str(caption)) if caption and not isinstance(caption, Markup) else "table",
    )


def _cell(cell: Content, first: bool) -> Markup:
    if first:
        return tag("th", cell, scope="row")
    number = isinstance(cell, int | float) or (isinstance(cell, str) and cell[:1] in set("0123456789+-−∞<"))
    return tag("td", cell, class_="number" if number else None)
