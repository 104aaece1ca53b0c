"""The page's sections about what came out: subtitle, summary with findings, how to read the table, figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from crosspipe.problem.spread import spread
from crosspipe.report import prose
from crosspipe.report.figures import Picture
from crosspipe.report.findings import ERROR_LIMIT_PERCENT
from crosspipe.report.markup import Content, tag
from crosspipe.report.results import STATIC_SCHEDULES, Results
from crosspipe.report.rows import groups
from crosspipe.report.svg import embedded
from crosspipe.report.tables import against_static, fastest
from crosspipe.report.wording import gap, interval, joined

HEADLINES = 12  # more settings and delays than this, and the summary points to the table


def subtitle(results: Results, rows: Sequence[dict[str, Any]]) -> Content:
    """When, which shapes, and what the measured numbers are."""
    planned = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(results.campaign.created_at_s))
    shapes = dict.fromkeys(
        f"{r['sites']} sites × {r['stages'] // r['sites']} stages, {r['microbatches']} microbatches"
        for r in rows
        if r["stages"]
    )
    models = dict.fromkeys(r["model"] for r in rows)
    words = [f"Campaign planned {planned}", f"model {joined(list(models))}", *shapes]
    simulated = ["simulated"] if any(r["predicted_makespan_ms"] is not None for r in rows) else []
    return [" · ".join(words), " ", *(tag("span", o, class_="badge") for o in (*simulated, *_origins(rows)))]


def summary(results: Results, rows: Sequence[dict[str, Any]]) -> Content:
    """How far the campaign is, the fastest schedule of each delay, how well it was predicted, what is in doubt."""
    counts = Counter(r["status"] for r in rows)
    states = joined([f"{n} {status}" for status, n in counts.items()])
    parts: list[Content] = [tag("p", f"{len(rows)} points: {states}.")]
    headlines = [tag("li", text) for group in groups(rows) if (text := _headline(group))]
    if len(headlines) <= HEADLINES:
        parts.append(tag("ul", *headlines) if headlines else None)
    else:
        parts.append(
            tag("p", f"The fastest schedule of each of the {len(headlines)} delays stands out in the table below.")
        )
    parts += [tag("p", _agreement(rows)), tag("p", what_is_measured(rows)), tag("p", _doubts(results))]
    return parts


def what_is_measured(rows: Sequence[dict[str, Any]]) -> str:
    """What the times mean, by their origin, in words."""
    words = [prose.ORIGINS.get(o, f"“{o}”: this version has no words for it.") for o in _origins(rows)]
    return " ".join([prose.SIMULATED, *(words or [prose.NOTHING_MEASURED])])


def reading_the_table(rows: Sequence[dict[str, Any]]) -> Content:
    """One paragraph on what the columns compare."""
    compared = prose.COMPARED_COLUMNS.format(statics=joined(list(STATIC_SCHEDULES)))
    return tag("p", *([prose.MEASURED_COLUMNS, " "] if _origins(rows) else []), compared, class_="soft")


def figures(drawn: Sequence[Picture]) -> Content:
    """The figures with their captions."""
    if not drawn:
        return tag("p", "No schedule has been solved yet, so there is nothing to draw.", class_="missing")
    shown = [
        tag("figure", embedded(p.svg, p.name, p.title, p.caption), tag("figcaption", f"{p.title}. {p.caption}"))
        for p in drawn
    ]
    return tag("div", *shown, class_="figures")


def _headline(group: Sequence[dict[str, Any]]) -> str | None:
    """The fastest of one setting and delay, in a sentence; None where nothing is timed."""
    found = fastest(group)
    if found is None:
        return None
    best, column, count = found
    measured = column == "measured_iteration_ms"
    ends = (best["measured_iteration_low_ms"], best["measured_iteration_high_ms"]) if measured else (None, None)
    place = ", ".join(filter(None, (best["setting"], f"delay {best['delay']}")))
    text = f"{place}: {best['schedule']} is the fastest of {count}, {interval(best[column], *ends)} ms "
    text += "measured" if measured else "simulated makespan"
    if best["best_static"] == best["schedule"]:
        text += "; it is static"
    elif best["best_static"] is not None:
        text += f", {against_static(best)} against {best['best_static']}, the best static schedule here"
    if best["gap_percent"] is not None:
        optimal = best["gap_percent"] == 0
        text += "; proven optimal" if optimal else f"; gap to the proven bound {gap(best['gap_percent'])}"
    return text + "."


def _agreement(rows: Sequence[dict[str, Any]]) -> str:
    errors = [(abs(r["error_percent"]), r) for r in rows if r["error_percent"] is not None]
    if not errors:
        return "No run has finished, so prediction and measurement cannot be compared yet."
    worst, row = max(errors, key=lambda pair: pair[0])
    middle = spread(error for error, _ in errors).median
    return (
        f"Prediction against measurement: the median of the absolute error over {len(errors)} points is "
        f"{middle:.2f} %, the largest {worst:.2f} % ({row['schedule']}, delay {row['delay']})."
    )


def _doubts(results: Results) -> Content:
    count = len(results.findings)
    if not count:
        return f"No findings: no measurement was distrusted, and no error exceeds {ERROR_LIMIT_PERCENT:g} %."
    said = "1 finding gives" if count == 1 else f"{count} findings give"
    return tag("a", f"{said} reason to distrust a number", href="#findings")


def findings(results: Results) -> Content:
    """Every reason to distrust a number, grouped by kind."""
    if not results.findings:
        return tag("p", "None.")
    by_name: dict[str, list[str]] = {}
    for finding in results.findings:
        by_name.setdefault(finding.name, []).append(finding.detail)
    items = [tag("li", tag("code", name), " – ", details[0], _more(details[1:])) for name, details in by_name.items()]
    return tag("div", tag("ul", *items), class_="findings")


def _more(details: Sequence[str]) -> Content:
    if not details:
        return None
    return tag("details", tag("summary", f"and {len(details)} more"), tag("ul", *(tag("li", d) for d in details)))


def _origins(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({r["origin"] for r in rows if r["measured_iteration_ms"] is not None})
