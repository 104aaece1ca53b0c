"""The report of a campaign as a person sees it: table, findings and where the rest is, on a console.

Built by whoever carried the campaign out, or on a cluster by its last job, which leaves the same words in a file.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections import Counter
from pathlib import Path

from rich.console import Console

from crosspipe.campaign.cluster import REPORT
from crosspipe.campaign.driver import first_numbers
from crosspipe.campaign.job import Me, unexpected
from crosspipe.campaign.outcomes import REPORT_WORDS, REPORTED, write_outcome
from crosspipe.campaign.tasks import Task
from crosspipe.errors import CrosspipeError
from crosspipe.report.artifacts import load_campaign
from crosspipe.store.files import wait_for, write_bytes

OF_ONE_MACHINE = ("shared_memory", "loopback", "nodes_are_one")  # findings about links that are no network: as expected


def show_report(directory: Path, console: Console, *, strict: bool, one_machine: bool) -> None:
    """Builds the report of what is finished and prints the most of it.

    Raises CrosspipeError with `strict` where there are findings, but for those that any one machine has, if it is one.
    """
    from crosspipe.report import build_report

    with console.status("writing the report") if console.is_terminal else contextlib.nullcontext():
        report = build_report(directory, strict=False)
    console.print(report.table)
    expected = OF_ONE_MACHINE if one_machine else ()
    for name, number in Counter(finding.name for finding in report.findings).items():
        first = next(finding.detail for finding in report.findings if finding.name == name)
        more = f" (and {number - 1} more, in the report)" if number > 1 else ""
        _say(console, f"{'as on any one machine' if name in expected else 'finding'}: {name}: {first}{more}")
    _say(console, f"report: {report.path}")
    count = sum(finding.name not in expected for finding in report.findings)
    if strict and count:
        raise CrosspipeError(f"{report.path}: strict=true, and there are {count} findings")


def report_of_job(task: Task, me: Me) -> None:
    """The last job of a campaign on a cluster: the report, what a person would see of it, and how that ended.

    A later report was submitted for more than this one has: then it alone says how the report ended.
    """
    campaign, text, reason = Path(task.campaign), io.StringIO(), ""
    try:
        strict = bool(load_campaign(campaign).points[0].config.get("strict"))
        show_report(campaign, Console(file=text, width=120), strict=strict, one_machine=False)
    except CrosspipeError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - the job's boundary: the log has it, and the outcome says so
        traceback.print_exc()
        reason = str(unexpected(error))
    print(text.getvalue(), f"no report: {reason}" if reason else "", sep="", flush=True)
    if first_numbers(campaign)[REPORT] - 1 > int(task.id.rpartition("-")[2]):
        return
    write_bytes(campaign / "jobs" / REPORT_WORDS, text.getvalue().encode())
    write_outcome(campaign, REPORTED, "failed" if reason else "done", reason=reason, log=me.log, job=str(me))


def words_of_job(directory: Path, patience_s: float) -> str:
    """What `report_of_job` left; empty where it had nothing to show."""
    missing = wait_for(directory / "jobs", (REPORT_WORDS,), patience_s)
    return "" if missing else (directory / "jobs" / REPORT_WORDS).read_text()


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
