"""An ORDER: Schedule, Timeline, the performance model, the checker, drawing, formats in and out."""

from crosspipe.schedule.checker import Violation, check
from crosspipe.schedule.crossings import crossings_table
from crosspipe.schedule.order import Block, Certificate, Message, Provenance, Schedule
from crosspipe.schedule.reference import simulate_reference
from crosspipe.schedule.simulation import simulate
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline

__all__ = [
    "Block",
    "Certificate",
    "Message",
    "Provenance",
    "Schedule",
    "TimedBlock",
    "TimedMessage",
    "Timeline",
    "Violation",
    "check",
    "crossings_table",
    "simulate",
    "simulate_reference",
]
