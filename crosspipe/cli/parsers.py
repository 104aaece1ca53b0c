"""The options of every plain verb, with help that teaches. `run` is Hydra's and has none here."""

from __future__ import annotations

import argparse
from pathlib import Path

from crosspipe.cli import complain


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line as everywhere."""

    def error(self, message: str) -> None:  # type: ignore[override]
        complain(f"{self.prog.removeprefix('crosspipe ')}: {message}; see {self.prog} --help")
        raise SystemExit(2)


def make_parser(verb: str, does: str) -> argparse.ArgumentParser:
    """The parser of one verb; `does` is its line in the overview."""
    parser = _Parser(
        prog=f"crosspipe {verb}",
        description=does[0].upper() + does[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add, path = parser.add_argument, Path
    if verb in ("status", "watch", "cancel", "retry", "report"):
        add("directory", type=path, metavar="DIR", help="campaign directory, such as campaigns/demo (its newest)")
    if verb == "watch":
        add("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)")
    if verb == "report":
        add("-o", "--output", type=path, metavar="OUT", help="folder or .html file (default DIR/report)")
        add("--store", type=path, metavar="DIR", help="the artifact store, if it has moved since")
        add("--strict", action="store_true", help="exit with 1 where anything is found to distrust")
    if verb in ("solve", "simulate", "check"):
        add("problem", type=path, metavar="PROBLEM.json")
    if verb == "solve":
        add("-s", "--schedule", default="auto", metavar="NAME", help="name of the schedule, or auto (default)")
        add("-o", "--output", type=path, metavar="SCHEDULE.json", help="where to write it (default: only said)")
        add("--time-limit", type=float, default=60.0, metavar="S", help="seconds a search may take (default 60)")
        add("--workers", type=int, metavar="N", help="threads of a search (default: the CPUs of this process)")
        add("--seed", type=int, default=0, metavar="N", help="of everything random (default 0)")
        add("--pieces", type=int, default=8, metavar="N", help="n_sub of cross_ud_sub (default 8)")
    if verb in ("simulate", "check"):
        add("schedule", type=path, metavar="SCHEDULE", help="JSON, or PyTorch pipelining CSV")
    if verb == "simulate":
        add("-o", "--output", type=path, metavar="OUT", help="timeline as .json, .parquet, or picture .svg/.png/.pdf")
    if verb == "show":
        add(
            "file",
            type=path,
            metavar="FILE",
            help="problem, schedule, timeline, link table, block costs or run (.json)",
        )
        add(
            "--problem",
            type=path,
            metavar="PROBLEM.json",
            help="what a schedule is drawn on (default: its own problem.json beside it)",
        )
        add("-o", "--output", type=path, metavar="OUT", help="picture: .svg, .png, .pdf or .html (default: here)")
    if verb == "convert":
        add("source", type=path, metavar="IN", help=".json schedule, .json or .parquet timeline, pipelining .csv")
        add("target", type=path, metavar="OUT", help=".json, .csv, .trace.json or .goal")
        add("--problem", type=path, metavar="PROBLEM.json", help="needed where times or messages are written")
    if verb == "advise":
        add("what", nargs="+", metavar="PROBLEM.json | OVERRIDE", help="a problem, or overrides as of crosspipe run")
        add("--time-limit", type=float, default=3.0, metavar="S", help="seconds each search may take (default 3)")
        add("--workers", type=int, metavar="N", help="threads of a search (default: the CPUs of this process)")
    if verb == "store":
        add("action", choices=("ls", "gc"), help="ls: list; gc: remove what no campaign uses and nobody makes")
        add("--store", type=path, default=Path("crosspipe-store"), metavar="DIR", help="default crosspipe-store")
        add("--dry-run", action="store_true", help="gc: say what would go, remove nothing")
    if verb == "doctor":
        add("--store", type=path, default=Path("crosspipe-store"), metavar="DIR", help="store to try writing to")
    parser.epilog = _EPILOGS.get(verb)
    return parser


_EPILOGS = {
    "status": "exit code 1 where something failed\nexample: crosspipe status campaigns/demo",
    "retry": "example: crosspipe retry campaigns/demo",
    "report": "example: crosspipe report campaigns/demo -o report.html",
    "solve": "example: crosspipe solve problem.json -s cross_ud --time-limit 20 -o schedule.json",
    "simulate": "example: crosspipe simulate problem.json schedule.json -o timeline.svg",
    "check": "exit code 1 where the schedule is not valid, each violation on a line\n"
    "example: crosspipe check problem.json schedule.json",
    "show": "example: crosspipe show schedule.json --problem problem.json",
    "convert": "examples:\n  crosspipe convert schedule.json schedule.csv\n"
    "  crosspipe convert schedule.json run.trace.json --problem problem.json",
    "advise": "examples:\n  crosspipe advise problem.json\n"
    "  crosspipe advise model=llama3_405b costs=analytic network=cross_region pipeline.stages=16 pipeline.replicas=4\n"
    "some twenty searches: with --time-limit 3 about a minute, with more the gaps get smaller",
    "store": "examples:\n  crosspipe store ls\n  crosspipe store gc --dry-run",
}
