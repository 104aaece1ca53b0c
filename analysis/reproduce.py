"""Regenerates docs/results from nothing: runs every experiment of `experiments.toml` and its scripts, writes the page.

python analysis/reproduce.py                   all of it; each experiment takes some minutes on two quiet cores
python analysis/reproduce.py --only fig8 fig15

A new experiment is a line in `experiments.toml`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import msgspec

from crosspipe import __version__
from crosspipe.report import load_results
from crosspipe.store import load, save

HERE = Path(__file__).parent
LIST = HERE / "experiments.toml"
RUN = "from crosspipe.cli import main; raise SystemExit(main())"
MARKER = "of-crosspipe-reproduce"  # in the work folder: it is ours to empty
MADE = "made.json"  # beside an experiment's tables
ALL_IS_WELL = {"done", "cached", "infeasible"}  # that a schedule does not fit a memory is a result


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of `experiments.toml`."""

    title: str
    run: list[str] = []
    scripts: list[str] = []


class Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reproduced"):
    """Where and from what the results of one experiment were made."""

    schema: int = 1
    command: str
    commit: str
    crosspipe: str
    machine: str
    search_limit_s: list[float]
    points: dict[str, int]  # by status
    seconds: float


def experiments() -> dict[str, Experiment]:
    """The experiments in their order, with what they leave out filled in."""
    lines = tomllib.loads(LIST.read_text(encoding="utf-8"))
    found = {name: msgspec.convert(line, Experiment) for name, line in lines.items()}
    return {
        name: msgspec.structs.replace(e, run=e.run or [f"experiment={name}"], scripts=e.scripts or [name])
        for name, e in found.items()
    }


def reproduce(name: str, experiment: Experiment, work: Path, out: Path) -> Made:
    """Runs one experiment and its scripts into `out`, which is emptied first."""
    started, campaign = time.monotonic(), work / name
    command = [*experiment.run, f"store={work / 'store'}", f"campaign_dir={campaign}"]
    ended = subprocess.run([sys.executable, "-c", RUN, "run", *command], check=False).returncode
    points = load_results(campaign).points if ended in (0, 1) else None  # 1: not every point has a result
    if points is None:
        raise SystemExit(f"{name}: crosspipe run ended with {ended}")
    for point, status, reason in points.select("point", "status", "reason").iter_rows():
        if status not in ALL_IS_WELL:
            raise SystemExit(f"{name}: {point} is {status}: {reason}")
    shutil.rmtree(out, ignore_errors=True)  # a figure that is no longer made is no result
    for script in experiment.scripts:
        subprocess.run([sys.executable, str(HERE / f"{script}.py"), str(campaign), "-o", str(out)], check=True)
    made = Made(
        command=" ".join(["crosspipe run", *experiment.run]),
        commit=commit(),
        crosspipe=__version__,
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        search_limit_s=search_limits_s(campaign),
        points=dict(Counter(points["status"].to_list())),
        seconds=round(time.monotonic() - started, 1),
    )
    save(out / MADE, made)
    return made


def search_limits_s(campaign: Path) -> list[float]:
    """The time limits of the searches in a campaign."""
    points = load_results(campaign).artifacts.values()
    return sorted({a.point.config["solver"]["time_limit_s"] for a in points})


def commit() -> str:
    """The commit of this checkout, and whether its code differs from it; "unknown" without git."""
    code = [str(HERE.parent / part) for part in ("crosspipe", "conf", "analysis")]
    try:
        hashed, changed = (
            subprocess.run(["git", "-C", str(HERE), *what], capture_output=True, text=True, check=True).stdout.strip()
            for what in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", *code])
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return hashed + (" with uncommitted changes" if changed else "")


def page(out: Path) -> str:
    """The page over all results that are there: each experiment's tables, its figures shown, where it was made."""
    parts = [
        "# Results\n\nMade by `make reproduce` (`python analysis/reproduce.py`). Numbers are simulated by the "
        "alpha–beta model with queueing on shared wires, unless a table or figure says emulated, shaped TCP or real "
        "link. Simulated ones depend on the machine only by how far a search came within its time, and the gap says "
        "how far that was at least."
    ]
    for name, experiment in experiments().items():
        folder = out / name
        if not (folder / MADE).exists():
            continue
        made = load(folder / MADE, Made)
        parts += [f"## {name}: {experiment.title}", origin(made, experiment)]
        for table in sorted(folder.glob("*.md")):
            text = table.read_text(encoding="utf-8")
            rows = text.count("\n| ") - 1
            parts.append(text.strip() if rows <= 40 else f"[{table.stem}]({name}/{table.name}): {rows} rows.")
        parts += [f"![{figure.stem}]({name}/{figure.name})" for figure in sorted(folder.glob("*.png"))]
    return "\n\n".join(parts) + "\n"


def origin(made: Made, experiment: Experiment) -> str:
    """How one experiment was made, in words."""
    scripts = " and ".join(f"`analysis/{script}.py`" for script in experiment.scripts)
    limits = " or ".join(f"{limit:g} s" for limit in made.search_limit_s)
    counts = ", ".join(f"{count} {status}" for status, count in made.points.items())
    return (
        f"`{made.command}`, then {scripts}: {counts} points, {made.seconds:.0f} s in all, a search at most {limits}; "
        f"crosspipe {made.crosspipe}, commit {made.commit}; {made.machine}."
    )


def main() -> None:
    known = experiments()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=HERE.parent / "docs" / "results")
    parser.add_argument("--work", type=Path, default=HERE.parent / "build" / "reproduce", help="campaigns and store")
    parser.add_argument("--keep", action="store_true", help="go on with the campaigns and the store of an earlier call")
    parser.add_argument("--only", nargs="+", choices=known, default=list(known), metavar="NAME")
    told = parser.parse_args()
    work = told.work.resolve()
    if work.is_dir() and any(work.iterdir()) and not (work / MARKER).exists():
        parser.error(f"--work {told.work}: holds other things and would be emptied; give a folder of its own")
    if not told.keep:
        for of_before in ("store", *told.only):
            shutil.rmtree(work / of_before, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    (work / MARKER).touch()
    for name in told.only:
        made = reproduce(name, known[name], work, told.out / name)
        print(f"{name}: {made.seconds:.0f} s", flush=True)
    (told.out / "README.md").write_text(page(told.out), encoding="utf-8")
    print(told.out / "README.md")


if __name__ == "__main__":
    main()
