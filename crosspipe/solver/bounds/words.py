"""A bound in words: which stage or wire binds, which windows idle and why. Formats numbers, proves nothing."""

from __future__ import annotations

from crosspipe.solver.bounds.stage import StageBound
from crosspipe.solver.bounds.wire import WireBound


def milliseconds(time_ns: float) -> str:
    """A time as people read it: ms with as many digits as it needs, at most six."""
    return f"{time_ns / 1e6:.6g} ms"


def stage_words(bound: StageBound) -> str:
    """Why a stage binds."""
    words = [f"stage {bound.stage} binds: its blocks take {milliseconds(bound.work_ns)}"]
    held = "all microbatches" if bound.fits is None or bound.all_fit else f"{bound.fits} microbatches"
    if bound.lead_ns:
        why = "before its first block"
        if bound.lead_ns > bound.head_ns:
            why = f"before its first D, whose gradient is {milliseconds(bound.turn_ns)} away, with {held} in memory"
        words.append(f"it idles {milliseconds(bound.lead_ns)} {why}")
    if bound.rounds and bound.round_ns:
        words.append(
            f"{milliseconds(bound.round_ns)} in each of {bound.rounds} rounds of {held} between an F and its D"
        )
    if bound.drain_ns:
        late = bound.late_ns == bound.drain_ns
        what = "D, when only W" if late else "F, when only gradients"
        words.append(f"{milliseconds(bound.drain_ns)} after its last {what} still in memory can run")
    if bound.value_ns < bound.work_ns + bound.lead_ns + bound.drain_ns:
        words.append("these windows may overlap, as all microbatches fit")
    return ", ".join(words)


def wire_words(bound: WireBound) -> str:
    """Why a wire binds."""
    return (
        f"wire {bound.wire} binds: {bound.messages} messages occupy it for {milliseconds(bound.busy_ns)}, the first is "
        f"ready after {milliseconds(bound.ready_ns)}, and {milliseconds(bound.after_ns)} follow the last"
        + (
            f", {milliseconds(bound.tail_ns)} more as a stage cannot pass both its chunks so fast"
            if bound.tail_ns
            else ""
        )
    )
