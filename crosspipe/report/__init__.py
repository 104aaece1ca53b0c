"""WHAT came out: tidy results, tables, figures and the HTML report, from artifacts alone."""

from crosspipe.report.build import Report, build_report
from crosspipe.report.results import Results, dictionary, load_results
from crosspipe.report.tables import SummaryTable, summary_table

__all__ = ["Report", "Results", "SummaryTable", "build_report", "dictionary", "load_results", "summary_table"]
