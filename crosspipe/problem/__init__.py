"""WHAT is to be scheduled: block costs, links, traversal, memory, the Problem itself."""

from crosspipe.problem.costs import BlockCost, BlockCosts
from crosspipe.problem.findings import Finding
from crosspipe.problem.links import Hop, Link, LinkTable
from crosspipe.problem.problem import DataParallel, Problem
from crosspipe.problem.spread import Spread
from crosspipe.problem.traversal import TRAVERSALS

__all__ = [
    "TRAVERSALS",
    "BlockCost",
    "BlockCosts",
    "DataParallel",
    "Finding",
    "Hop",
    "Link",
    "LinkTable",
    "Problem",
    "Spread",
]
