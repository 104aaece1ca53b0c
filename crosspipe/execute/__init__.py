"""HOW it runs: lowering to a Plan, engine, transports, link emulation, pacing, and the sessions that start the ranks.

What is exported here needs no torch; the ranks themselves are `python -m crosspipe.execute.worker`.
"""

from crosspipe.execute.lowering import lower
from crosspipe.execute.plan import Plan
from crosspipe.execute.session import Outcome, run_points, run_session
from crosspipe.execute.spec import Point, RunConfig, Session

__all__ = ["Outcome", "Plan", "Point", "RunConfig", "Session", "lower", "run_points", "run_session"]
