"""The fixed explanations of the page, in one place to be read and corrected together.

They say what a kind of number means and what it does not show; anything about a particular campaign is written from its
artifacts elsewhere.
"""

from __future__ import annotations

SIMULATED = "“Simulated” times follow from the alpha–beta model with queueing on shared wires."

NOTHING_MEASURED = "No run has been measured yet."

ORIGINS = {
    "emulated": (
        "“Emulated” means that the delay across sites was injected from the same alpha–beta model that the prediction "
        "uses: agreement shows that the engine keeps to the plan, not that the model describes a real wide-area link."
    ),
    "shaped TCP": (
        "“Shaped TCP” means real TCP through a link with its own latency, rate and loss; nothing was injected, so "
        "agreement is evidence for the model."
    ),
    "real link": "“Real link” means that messages crossed the sites' own link and nothing was injected.",
}

PACED = (
    "Compute was paced at {paces} × the profiled block times: each block does its real mathematics and then waits for "
    "its planned end, so that several stages can share a core. Predicted and measured times, and T_F, are on that "
    "scale. Paced times are anchored: a block counts as ended when it was planned to, unless it was late. The wall "
    "clock column is the makespan without anchoring, and lateness is counted against the anchors."
)

UNPACED = "Unpaced runs took the time their blocks needed."

MEASURED_COLUMNS = (
    "Predicted: simulated makespan plus the profiled gradient norm and optimizer step. Measured: median over the "
    "iterations after the warm-up with its distribution-free 95 % interval (none below six iterations). Error: "
    "measured median against predicted."
)

COMPARED_COLUMNS = (
    "Best static: the fastest finished schedule among {statics} at the same setting and delay; one that does not fit "
    "the memory cannot finish, and only schedules of this campaign are compared. Negative is faster; n.s.: the 95 % "
    "intervals of the two medians overlap, so chance may explain the difference (stricter than a test at 5 %). "
    "Gap: simulated makespan over the best lower bound proven here for the same problem. The fastest of each delay "
    "stands out. Peak: the activations of the fullest stage, counted along the order (as executed where it ran); an "
    "order may stay below the limit, never above it, and receive buffers come on top of both."
)

DELAY_POINTS = "Lines are simulated; points are {origin} (median and its 95 % interval)."

DELAY_BOUND = "The dotted line is the proven lower bound: no order of the blocks is faster."

AGREEMENT_CAPTION = (
    "A point per schedule and delay: iteration time measured ({origin}) over predicted (simulated); below, the error "
    "in percent of the prediction with the 95 % interval of the median."
)

TRADEOFF_CAPTION = (
    "A mark per schedule and setting at this delay, simulated; no schedule of this campaign below the line takes both "
    "less memory and less time."
)

BOUNDS = (
    "A bound holds for every schedule of the same problem, so all of them are judged by the best one that was proven "
    "for it, here and in the results. Optimal is said only where the gap is zero."
)

GANTT = (
    "Each schedule as predicted and, on the same time axis, as measured: the iteration with the median makespan. A "
    "row is a stage; below it stands the memory its activations take, and thin lines are messages across sites."
)

NO_SCRIPT = (
    "This browser runs no scripts, so the pictures stay empty; crosspipe show draws them from the files in the store."
)

FILES = (
    "The files results.parquet and iterations.parquet (both also as .csv) beside this page hold the same numbers, "
    "dictionary.csv what their columns mean."
)
