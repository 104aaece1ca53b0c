"""WHO finds the order: static families, greedy, policy search, CP-SAT, lower bounds, the portfolio that picks."""

from crosspipe.solver.bounds import Bound, lower_bound
from crosspipe.solver.portfolio import SCHEDULES, Entry, solve
from crosspipe.solver.request import Progress

__all__ = ["SCHEDULES", "Bound", "Entry", "Progress", "lower_bound", "solve"]
