"""Stage bodies that do nothing but leave a trace: for tests of everything around the real ones.

The folder in CROSSPIPE_STANDIN holds `trace` (a line per artifact made) and what a test orders: `fail-STAGE`,
`crash-STAGE` (the job dies by SIGKILL), `hold-STAGE` (work waits until the file is gone), `keep-STAGE` (a training
state is kept on the way, as of the iteration that the file names).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from crosspipe.campaign.job import Context, Ended
from crosspipe.campaign.unfinished import folder_of
from crosspipe.errors import StageFailed
from crosspipe.store import Making


def body(makings: Sequence[Making], context: Context) -> Iterator[Ended]:
    orders = Path(os.environ["CROSSPIPE_STANDIN"])
    stage = context.task.stage
    for making in makings:
        label = f"{stage} {context.task.names[making.request.reference]}"
        keep = orders / f"keep-{stage}"
        if keep.exists():
            state = folder_of(Path(context.task.campaign), making.request.key) / f"iteration-{keep.read_text()}"
            state.mkdir(parents=True, exist_ok=True)
        context.say(label)
        with (orders / "trace").open("a") as trace:
            trace.write(f"begin {label}\n")
        try:
            while (orders / f"hold-{stage}").exists():
                time.sleep(0.02)
        except KeyboardInterrupt:  # as a search does: the best so far
            pass
        crash = orders / f"crash-{stage}"
        if crash.exists() and crash.read_text() in label:
            os.kill(os.getpid(), signal.SIGKILL)
        only = orders / f"fail-{stage}"
        if only.exists() and only.read_text() in label:
            yield making, StageFailed(f"rank 2 died at {label}")
            continue
        (making.scratch / "payload.json").write_text(label)
        with (orders / "trace").open("a") as trace:
            trace.write(f"made {label}\n")
        yield making, None


BODIES = dict.fromkeys(("links", "blocks", "solve", "run"), body)
PAYLOAD = dict.fromkeys(BODIES, ("payload.json",))
