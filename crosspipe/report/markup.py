"""HTML as values: elements are built by functions, and text is escaped unless it already is markup.

Not a template engine: a page is an expression, so nothing can be left unescaped by forgetting a filter. The idea is
that of htpy and MarkupSafe, in the few lines this report needs.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
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


def tag(element: str, *content: Content, **attributes: str | bool | None) -> Markup:
    """`element` around `content`.

    Attributes: a trailing underscore is dropped and others become hyphens (`class_`, `aria_label`); True gives a bare
    attribute, False and None none.
    """
    written = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written += f" {key}" if value is True else f' {key}="{html.escape(value, quote=True)}"'
    if element in VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{render(content)}</{element}>")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    caption: str,
    text: Collection[str],
    classes: Sequence[str | None] | None = None,
) -> Markup:
    """A table that scrolls sideways on its own, reachable by keyboard; the first cell of a row is its header.

    `text` names the columns of words; all others are set as numbers. `classes` has one entry a row.
    """
    kinds = [None if name in text else "number" for name in head]
    kinds = [kind if index else None for index, kind in enumerate(kinds)]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=kind or _words(cell)) for cell, kind in zip(row[1:], kinds[1:], strict=True)),
            class_=classes[index] if classes else None,
        )
        for index, row in enumerate(rows)
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", *(tag("th", n, scope="col", class_=k) for n, k in zip(head, kinds, strict=True)))),
            tag("tbody", *body),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _words(cell: Content) -> str | None:
    return "words" if isinstance(cell, str) and not isinstance(cell, Markup) and len(cell) > 40 else None


FOLDED_ROWS = 24  # longer tables of detail start closed


def folded(content: Markup, rows: int, what: str) -> Markup:
    """`content`, behind a summary that can be opened where it has many rows."""
    return content if rows <= FOLDED_ROWS else tag("details", tag("summary", f"{rows} {what}"), content, class_="long")
