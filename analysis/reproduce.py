"""Regenerates docs/results from nothing: runs every simulated experiment and its script, and writes the page over them.

python analysis/reproduce.py                   all of it, half an hour on two quiet cores
python analysis/reproduce.py --only fig8 fig15
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from crosspipe import __version__

HERE = Path(__file__).parent
EXPERIMENTS = {
    "fig8": "What delay does to each schedule",
    "fig9": "The pipeline across sites against data parallelism across sites",
    "fig11": "Latency alone and bandwidth alone, and the headline",
    "fig14": "How far the search comes as the pipeline grows",
    "fig15": "Bubble strides",
    "table5": "Two sites, three cases of batch and memory",
}
RUN = "from crosspipe.cli import main; raise SystemExit(main())"


def reproduce(name: str, work: Path, out: Path) -> float:
    """Runs one experiment and its script; returns the seconds both took."""
    started = time.monotonic()
    campaign = work / name
    run = [
        sys.executable,
        "-c",
        RUN,
        "run",
        f"experiment={name}",
        f"store={work / 'store'}",
        f"campaign_dir={campaign}",
    ]
    ended = subprocess.run(run, check=False).returncode
    if ended not in (0, 1):  # 1: a schedule does not fit the memory of some case, which is a result too
        raise SystemExit(f"experiment={name} ended with {ended}")
    shutil.rmtree(out / name, ignore_errors=True)  # a figure that is no longer made is no result
    subprocess.run([sys.executable, str(HERE / f"{name}.py"), str(campaign), "-o", str(out / name)], check=True)
    return time.monotonic() - started


def page(out: Path) -> str:
    """The page over all results that are there: each experiment's tables, its figures linked."""
    parts = [
        "# Results\n\nMade by `python analysis/reproduce.py`; every number is simulated (the alpha–beta model with "
        "queueing on shared wires), so none depends on the machine except how far a search came within its time.\n\n"
        f"crosspipe {__version__}, Python {platform.python_version()}, {platform.machine()}."
    ]
    for name, title in EXPERIMENTS.items():
        folder = out / name
        if not folder.is_dir():
            continue
        parts.append(f"## {name}: {title}\n\n`crosspipe run experiment={name}`, then `analysis/{name}.py`.")
        for table in sorted(folder.glob("*.md")):
            text = table.read_text(encoding="utf-8")
            rows = text.count("\n| ") - 1
            parts.append(text.strip() if rows <= 40 else f"[{table.stem}]({name}/{table.name}): {rows} rows.")
        parts += [f"![{figure.stem}]({name}/{figure.name})" for figure in sorted(folder.glob("*.png"))]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=HERE.parent / "docs" / "results")
    parser.add_argument("--work", type=Path, default=HERE.parent / "build" / "reproduce", help="campaigns and store")
    parser.add_argument("--keep", action="store_true", help="go on with the campaigns and the store of an earlier call")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), metavar="NAME")
    told = parser.parse_args()
    if not told.keep:
        for made in ("store", *told.only):
            shutil.rmtree(told.work / made, ignore_errors=True)
    for name in told.only:
        print(f"{name}: {reproduce(name, told.work.resolve(), told.out):.0f} s", flush=True)
    (told.out / "README.md").write_text(page(told.out), encoding="utf-8")
    print(told.out / "README.md")


if __name__ == "__main__":
    main()
