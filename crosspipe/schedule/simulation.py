"""`simulate`: the predicted Timeline of a schedule, by the compiled performance model.

The model itself is defined in `crosspipe.schedule.reference`; this file only turns the kernel's arrays into a Timeline.
"""

from __future__ import annotations

from crosspipe.problem import Problem
from crosspipe.schedule.deadlock import explain_deadlock
from crosspipe.schedule.order import MESSAGE_KINDS, Message, Schedule
from crosspipe.schedule.timeline import TimedBlock, TimedMessage, Timeline, in_ready_order, memory_steps


def simulate(problem: Problem, schedule: Schedule) -> Timeline:
    """The predicted Timeline of `schedule` on `problem`: integer ns from 0, bytes. Memory is reported, not enforced.

    Raises FieldError if the schedule is not of this problem's shape or names a block or message it does not have,
    Deadlock (who waits for whom) if it cannot finish. The model: CrossPipe (ATC'25) section 4, with queueing on shared
    wires; see `simulate_reference`.
    """
    from crosspipe.schedule import kernel  # numba loads only where something is timed

    encoded = kernel.encode(problem, schedule)
    makespan, times = kernel.run(kernel.compile_problem(problem), encoded)
    if makespan == kernel.DEADLOCKED:
        raise explain_deadlock(problem, schedule, times.done.tolist())
    start, end = times.start.tolist(), times.end.tolist()
    blocks = tuple(
        tuple(TimedBlock(*timed) for timed in zip(order, start[stage], end[stage], strict=False))
        for stage, order in enumerate(schedule.orders)
    )
    messages = []
    for row, kind in enumerate(MESSAGE_KINDS):
        for position, of_position in enumerate(times.message[row].tolist()):
            hop = problem.message_hop(kind, position)
            for microbatch, moments in enumerate(of_position):
                if hop is not None and moments[0] >= 0:
                    messages.append(TimedMessage(Message(kind, position, microbatch), hop.wire, *moments))
    return Timeline(
        traversal=problem.traversal,
        stages=problem.stages,
        chunks=problem.chunks,
        microbatches=problem.microbatches,
        sites=problem.sites,
        blocks=blocks,
        messages=tuple(sorted(messages, key=in_ready_order)),
        memory=tuple(memory_steps(problem, row, stage) for stage, row in enumerate(blocks)),
    )
