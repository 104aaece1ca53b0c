"""Whether a schedule may be run: completeness, order, dependencies, memory at every instant, message order.

It judges schedules from anywhere, so it never raises on what stands in them: every fault becomes one sentence. It says
nothing about how good a schedule is.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from crosspipe.errors import Deadlock, FieldError
from crosspipe.problem import Problem
from crosspipe.schedule.order import Block, Message, Schedule, block_faults, message_faults, require_size
from crosspipe.schedule.simulation import simulate
from crosspipe.schedule.timeline import Timeline


class Violation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault of a schedule: `message` is a sentence, `kind` one of `shape`, `block`, `missing`, `pieces`, `order`,
    `message_order`, `deadlock`, `memory`, `certificate`."""

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


def check(problem: Problem, schedule: Schedule) -> list[Violation]:
    """Every fault of `schedule` on `problem`, a sentence each; empty if it is valid. Never raises on a bad order.

    Valid means: every F, D and W (or B for both) of every chunk and microbatch once, W's pieces complete and no more
    than the problem allows; F before D before W; no deadlock; each stage within its activation limit at every instant;
    listed messages complete and, between different senders, in the order they become ready; a certificate for this
    problem that states the makespan we find.
    """
    try:
        schedule.check_fits(problem)
        require_size(problem)
    except FieldError as error:
        return [Violation("shape", str(error))]
    found = [
        Violation("block", f"{where} = {w.what}: {w.why}; {w.remedy}")
        for where, w in block_faults(problem, schedule.orders)
    ]
    messages = [
        Violation("message_order", f"{where} = {w.what}: {w.why}; {w.remedy}")
        for where, w in message_faults(problem, schedule.messages)
    ]
    if not found:
        for stage, order in enumerate(schedule.orders):
            found += _incomplete(problem, stage, order)
            found += _misordered(stage, order)
            found += _over_limit(problem, stage, order)
    found += messages
    if any(v.kind in ("block", "message_order") for v in found):
        return found  # it cannot be timed
    found += _unlisted(problem, schedule)
    try:
        timeline = simulate(problem, schedule)
    except Deadlock as deadlock:
        return [*found, Violation("deadlock", "; ".join(deadlock.cycle))]
    return [*found, *_not_executable(problem, schedule, timeline), *_wrong_certificate(problem, schedule, timeline)]


def _incomplete(problem: Problem, stage: int, order: tuple[Block, ...]) -> Iterator[Violation]:
    """Blocks of a stage that are missing, and W in the wrong pieces."""
    there = {(b.kind, b.chunk, b.microbatch) for b in order}
    pieces: dict[tuple[int, int], list[Block]] = {}
    for block in order:
        if block.kind == "W":
            pieces.setdefault((block.chunk, block.microbatch), []).append(block)
    for chunk in range(problem.chunks):
        for mb in range(problem.microbatches):
            fused = ("B", chunk, mb) in there
            needed = ["F"] if fused else ["F", "D", "W"]
            for kind in needed:
                if (kind, chunk, mb) not in there:
                    yield Violation("missing", f"stage {stage} lacks {Block(kind, chunk, mb)}")
            cut = pieces.get((chunk, mb), [])
            if fused and cut:
                yield Violation("pieces", f"stage {stage} runs {cut[0]} though its B{mb} has done that work")
            counts = sorted({b.pieces for b in cut})
            if len(counts) > 1:
                yield Violation("pieces", f"stage {stage} cuts W{mb} of chunk {chunk} in {counts} pieces at once")
            elif counts and counts[0] > problem.weight_grad_pieces:
                allowed = f"the problem allows {problem.weight_grad_pieces}"
                yield Violation("pieces", f"stage {stage} cuts W{mb} of chunk {chunk} in {counts[0]} pieces; {allowed}")
            elif counts:
                for piece in sorted(set(range(counts[0])) - {b.piece for b in cut}):
                    yield Violation("missing", f"stage {stage} lacks {Block('W', chunk, mb, piece, counts[0])}")


def _misordered(stage: int, order: tuple[Block, ...]) -> Iterator[Violation]:
    """D (or B) before its F, W before its D, on one stage."""
    place = {("D" if b.kind == "B" else b.kind, b.chunk, b.microbatch): i for i, b in enumerate(order) if b.kind != "W"}
    for i, block in enumerate(order):
        before = {"D": "F", "B": "F", "W": "D"}.get(block.kind)
        if before is not None and place.get((before, block.chunk, block.microbatch), -1) > i:
            yield Violation("order", f"stage {stage} runs {block} before its {before}{block.microbatch}")


def _over_limit(problem: Problem, stage: int, order: tuple[Block, ...]) -> Iterator[Violation]:
    """Activations above the stage's limit. A stage runs one block at a time, so its order alone says what it holds."""
    limit = problem.activation_limit_bytes[stage]
    held = peak = 0
    first: tuple[Block, int] | None = None
    for block in order:
        cost = problem.costs[stage][block.chunk]
        held += cost.take_bytes(block.kind) if block.piece == 0 else 0
        peak = max(peak, held)
        if limit is not None and held > limit and first is None:
            first = block, held
        held -= cost.release_bytes(block.kind, block.piece, block.pieces)
    if first is not None:
        yield Violation(
            "memory",
            f"stage {stage} holds {first[1]} bytes of activations when {first[0]} starts, its limit is {limit}; "
            f"its peak is {peak}",
        )


def _sent(problem: Problem, schedule: Schedule) -> Iterator[Message]:
    """Every message the orders send."""
    for stage, order in enumerate(schedule.orders):
        for block in order:
            if block.kind != "W":
                kind = "D" if block.kind == "B" else block.kind
                yield Message(kind, problem.position(stage, block.chunk), block.microbatch)
    for position in range(problem.positions):
        yield Message("gather", position, 0)
        yield Message("reduce", position, 0)


def _unlisted(problem: Problem, schedule: Schedule) -> Iterator[Violation]:
    """Messages that a wire's listed order forgets."""
    listed = {wire: set(order) for wire, order in schedule.messages.items()}
    for message in _sent(problem, schedule):
        hop = problem.message_hop(message.kind, message.position)
        if hop is not None and hop.wire in listed and message not in listed[hop.wire]:
            yield Violation("message_order", f"messages[{hop.wire!r}] does not list the {message}")


def _not_executable(problem: Problem, schedule: Schedule, timeline: Timeline) -> Iterator[Violation]:
    """Listed orders that hold a message of one rank for a later one of another rank, which no rank can arrange."""
    ready = {m.message: m.ready_ns for m in timeline.messages}
    for wire, order in schedule.messages.items():
        latest: dict[int, Message] = {}  # per sending stage, the message listed so far that becomes ready last
        for message in order:
            if message not in ready:
                yield Violation("message_order", f"messages[{wire!r}] lists the {message}, which is never sent")
                continue
            sender = problem.place(message.position)[0]
            for other, earlier in latest.items():
                if other != sender and ready[earlier] > ready[message]:
                    yield Violation(
                        "message_order",
                        f"wire {wire} cannot send the {earlier} (stage {other}, ready at {ready[earlier]} ns) before "
                        f"the {message} (stage {sender}, ready at {ready[message]} ns): different ranks send in the "
                        "order they become ready",
                    )
            if sender not in latest or ready[message] > ready[latest[sender]]:
                latest[sender] = message


def _wrong_certificate(problem: Problem, schedule: Schedule, timeline: Timeline) -> Iterator[Violation]:
    """A certificate of this very problem whose makespan is not what we find."""
    certificate = schedule.certificate
    if certificate is None or schedule.problem_digest != problem.digest():
        return
    if certificate.makespan_ns != timeline.makespan_ns:
        stated = f"the certificate states a makespan of {certificate.makespan_ns} ns"
        yield Violation("certificate", f"{stated}, it is {timeline.makespan_ns} ns")
