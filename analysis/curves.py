"""Draws iteration time against delay, one figure a setting. Copy it and change what is selected or drawn.

python analysis/curves.py campaigns/demo -o curves.pdf
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crosspipe.report import load_results
from crosspipe.report.delay_figures import delay_figure
from crosspipe.report.export import run
from crosspipe.report.figures import styles
from crosspipe.report.tables import order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", type=Path, help="campaign directory")
    parser.add_argument("-o", "--out", type=Path, required=True, help=".pdf, .svg or .png; a number is added if needed")
    parser.add_argument("--store", type=Path, help="where the artifacts lie now; default: as the campaign recorded")
    options = parser.parse_args()
    rows = order(load_results(options.campaign, options.store).points)
    looks = styles([row["schedule"] for row in rows])
    for index, setting in enumerate(dict.fromkeys(row["setting"] for row in rows)):
        figure = delay_figure([row for row in rows if row["setting"] == setting], looks)
        if figure is None:
            print(f"{setting or 'campaign'}: nothing is solved yet, no figure")
            continue
        path = options.out.with_stem(f"{options.out.stem}{index or ''}")
        figure.savefig(path, dpi=200)
        print(path)


if __name__ == "__main__":
    run(main)
