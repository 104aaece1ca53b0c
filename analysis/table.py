"""Prints a campaign's summary table, or writes it as Markdown or CSV. Copy it and change the columns to your question.

python analysis/table.py campaigns/demo
python analysis/table.py campaigns/demo -o table.md
python analysis/table.py campaigns/demo -o table.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from crosspipe.report import load_results, summary_table
from crosspipe.report.export import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", type=Path, help="campaign directory")
    parser.add_argument("-o", "--out", type=Path, help="file to write, .md or .csv; default: the terminal")
    parser.add_argument("--store", type=Path, help="where the artifacts lie now; default: as the campaign recorded")
    options = parser.parse_args()
    points = load_results(options.campaign, options.store).points
    if options.out is None:
        Console().print(summary_table(points))
    elif options.out.suffix == ".csv":
        points.write_csv(options.out)
    elif options.out.suffix == ".md":
        options.out.write_text(summary_table(points).to_markdown(), encoding="utf-8")
    else:
        parser.error(f"-o {options.out}: writes .md or .csv")


if __name__ == "__main__":
    run(main)
