"""What one rank notes down while it runs an iteration: two times for everything, as anchored and as it really was.

All times are ns of the common clock. `crosspipe.execute.recording` joins the traces of all ranks into Timelines.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from crosspipe.schedule.order import Block, Message

# A block or message is called late when it misses its anchor by more than this: the accuracy (95th percentile) asked
# of an emulated delay. What is smaller shows in the percentiles of the delay error and in the raw timelines.
LATE_NS = 500_000


class TracedBlock(NamedTuple):
    """A block: anchored start and end, real start, end of its mathematics, and real end (with pacing: after waiting).

    Without pacing the anchored times are the real ones.
    """

    block: Block
    start_ns: int
    end_ns: int
    raw_start_ns: int
    computed_ns: int
    raw_end_ns: int

    @property
    def lateness_ns(self) -> int:
        """How much later than its anchor it really ended."""
        return self.raw_end_ns - self.end_ns


class TracedMessage(NamedTuple):
    """A received message (or one handed over inside the rank): its life by the header, and what the receiver saw.

    `arrival_ns` is the moment it counted from. The rank began to wait for it at `waited_ns`, the bytes were there at
    `received_ns` at the latest, the rank went on at `resumed_ns`; its receive was posted at `posted_ns`.
    """

    message: Message
    ready_ns: int
    start_ns: int
    served_ns: int
    arrival_ns: int
    waited_ns: int
    received_ns: int
    resumed_ns: int
    posted_ns: int

    @property
    def lateness_ns(self) -> int:
        """How long the rank stood still for the real transfer, after the message should have arrived."""
        return self.received_ns - max(self.arrival_ns, self.waited_ns)

    @property
    def raw_arrival_ns(self) -> int:
        """When it could really be used: as planned, unless the rank saw it come later."""
        return self.received_ns if self.lateness_ns > 0 and self.waited_ns < self.received_ns else self.arrival_ns


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration on one rank.

    `begin_ns` is the agreed start, `blocks_end_ns` the end of the last block of any rank (anchored), then come the
    gradient norm with clipping, and the optimizer step. `loss` is the mean over microbatches on the rank that has it.
    `gradient_norm` is global; gradients were multiplied by `clip_factor` (1: untouched).
    """

    index: int
    begin_ns: int
    blocks: tuple[TracedBlock, ...]
    messages: tuple[TracedMessage, ...]
    sent: int
    blocks_end_ns: int
    norm_end_ns: int
    raw_norm_end_ns: int
    step_end_ns: int
    raw_step_end_ns: int
    loss: float | None
    gradient_norm: float
    clip_factor: float
