"""The fixed explanations of what was measured: captions of pictures and notes below tables."""

from __future__ import annotations

HEAT_CAPTION = (
    "Measured from each rank (row) to each other (column), over the transport that the run uses; white lines part the "
    "sites."
)

ECDF_CAPTION = (
    "Measured: every repetition after the warm-up. A steep line is a steady link, steps or a long tail are why "
    "latencies are medians with an interval."
)

BOX_CAPTION = (
    "Measured over the run's transport: half the round trip of the smallest message; a box holds the middle half of "
    "the repetitions after the warm-up, its whiskers 98 %, the line is the median. A slow node stands out to the right."
)

FIT_CAPTION = (
    "Measured over the run's transport: medians over the links of each pair of sites, the line of alpha and beta, and "
    "below how far that line is off. A step is where the transport changes its protocol; what a schedule reckons with "
    "is the measured time at its message's own size."
)

RATE_CAPTION = (
    "Measured over the run's transport: what a link carries with a window of messages in flight, one way, both ways at "
    "once (each), and per pair while all pairs of the two sites send together."
)

NODES_CAPTION = (
    "A tick for each block: its time on that node over the median of the other nodes; the dot is their median. From "
    "the dotted line on a node is called slow."
)

LINK_HISTORY_CAPTION = (
    "Medians over the pairs of ranks against those of the oldest measurement, up to this campaign's; bars are the "
    "least and most of the pairs. The values stand in the table below."
)

BLOCK_HISTORY_CAPTION = "Medians summed over all blocks, from the oldest measurement to this campaign's."

SYMMETRY = (
    "Symmetric: alpha, bandwidth and the largest window one way differ from those of the way back by no more than "
    "10 %, or by no more than their 95 % intervals. Ping-pong times both ways together: only the windows go one way."
)

WINDOWS = (
    "A window's rate is its bytes over its time less an empty round trip, and is stated only where the bytes took the "
    "longer part; a dash is a link too long for a window of such small messages."
)

CONTENTION = (
    "Kept is the sum together over the sum alone: 100 % where nothing is shared, 1/pairs where one wire carries all. "
    "The performance model lets everything that crosses in one direction share one wire, which is too strict where the "
    "wire is wide enough for all."
)

KERNELS = (
    "Each operator's own time, without those it calls, timed under the profiler: shares and rates to see where time "
    "goes, not the durations of the schedule. FLOPs are those torch counts."
)

COMPARED = (
    "Each quantity is compared with its newest earlier value; in brackets stand the 95 % intervals, of sites and "
    "nodes the least and most. Beyond noise is what moved by more than 5 % and out of everything that earlier "
    "measurements saw."
)
