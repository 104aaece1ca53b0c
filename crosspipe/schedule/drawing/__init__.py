"""Pictures of Timelines: SVG text, a matplotlib figure, the terminal."""

from crosspipe.schedule.drawing.figure import draw_timeline
from crosspipe.schedule.drawing.svg import gantt_svg
from crosspipe.schedule.drawing.terminal import draw_terminal

__all__ = ["draw_terminal", "draw_timeline", "gantt_svg"]
