"""The command line: one verb a thing. Verbs on a campaign (`run`) are a Hydra application, verbs on files are plain.

Nothing heavy is imported before a verb is known, so that `--help` is immediate. Errors are one line on stderr, and the
exit code says whether the thing asked about is wrong (1) or the command was (2).
"""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Sequence

from crosspipe import __version__
from crosspipe.errors import CrosspipeError

VERBS = {
    "run": "walk the whole road: measure, solve, train, report (a Hydra application: overrides, sweeps)",
    "status": "where a campaign stands, what failed and why",
    "watch": "follow a campaign until it ends",
    "cancel": "end a campaign's jobs; what is done stays",
    "retry": "make what a campaign still lacks",
    "report": "tables, figures and report.html from whatever has finished",
    "solve": "one schedule for one problem, with its proven bound",
    "simulate": "the predicted timeline of a schedule",
    "check": "is a schedule valid: order, dependencies, memory, deadlock",
    "show": "a problem, schedule, link table or run as a picture",
    "convert": "between JSON, PyTorch pipelining CSV, Chrome trace and GOAL",
    "advise": "which schedule, traversal and split, in what time, and which single change helps most",
    "store": "what the artifact store keeps, for which campaigns; remove the rest",
    "doctor": "what this machine offers, what is missing, and the command that brings it",
}

_EXAMPLES = """examples:
  crosspipe run experiment=demo                                 the whole road on this machine, a few minutes
  crosspipe run experiment=demo dry_run=true                    what would run, what is cached
  crosspipe run network.latency_ratio=0,0.5,1 schedule=1f1b,zbh1,cross_ud      a sweep of nine points
  crosspipe status campaigns/demo
  crosspipe solve problem.json -s cross_ud -o schedule.json
  crosspipe show schedule.json --problem problem.json -o schedule.svg

`crosspipe VERB --help` says more. Exit codes: 0 done, 1 the thing asked about is wrong or failed, 2 wrong usage."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point: runs one verb and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [text for text in given if text != "--debug"]
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _dispatch(given)
    except CrosspipeError as error:
        if debug:
            raise
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        jobs = given[:1] in (["run"], ["retry"])
        after = "jobs are cancelled, what is done stays: the same command goes on from there"
        complain(f"interrupted; {after}" if jobs else "interrupted before there was a result")
        return 1
    except BrokenPipeError:  # `crosspipe … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug or error.filename is None:
            raise
        complain(f"{error.filename}: {error.strerror}; give a place that can be read and written")
        return 1
    except Exception as error:
        if debug:
            raise
        complain(f"unexpected {type(error).__name__}: {error}; with --debug you see where, please report it")
        return 1


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if given[0] in ("-V", "--version"):
        print(f"crosspipe {__version__}")
        return 0
    verb, rest = given[0], given[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        complain(f"{verb}: no such verb; {hint}use one of {', '.join(VERBS)}")
        return 2
    if verb == "run":
        from crosspipe.cli.campaigns import run

        return run(rest)
    from crosspipe.cli.parsers import make_parser

    try:
        options = make_parser(verb, VERBS[verb]).parse_args(rest)
    except SystemExit as end:  # argparse has said what is wrong
        return int(end.code or 0)
    if verb in ("solve", "simulate", "check", "show", "convert"):
        from crosspipe.cli import files as home
    elif verb == "advise":
        from crosspipe.cli import advise as home  # type: ignore[no-redef]
    else:
        from crosspipe.cli import campaigns as home  # type: ignore[no-redef]
    return int(getattr(home, verb)(options))


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = "\n".join(f"  {verb:<{width}}  {does}" for verb, does in VERBS.items())
    return f"""usage: crosspipe VERB [...]

Pipeline schedules for training across datacenters: measure, search, prove, run, report.

verbs:
{lines}

options:
  --debug    show a traceback where an error would be one line
  --version

{_EXAMPLES}"""


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def complain(text: str) -> None:
    line = " ".join(text.split())
    print(f"crosspipe: {line}", file=sys.stderr)
