"""Stage bodies that leave a trace and otherwise do as they are told: for faults injected into everything around them.

The folder in CROSSPIPE_STANDIN holds `trace`, a line per artifact begun and made and per rank, and what a test orders:
while a file `hold-STAGE` exists the bodies of that stage wait, saying nothing more; `megabytes` is how much each
artifact holds. A `run` waits in a rank on each node of its job, as the real one does: whoever ends a rank makes the
artifact fail.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from crosspipe.campaign.job import Context, Ended
from crosspipe.errors import StageFailed
from crosspipe.store import Making


def body(makings: Sequence[Making], context: Context) -> Iterator[Ended]:
    orders = Path(os.environ["CROSSPIPE_STANDIN"])
    stage = context.task.stage
    for making in makings:
        label = f"{stage} {context.task.names[making.request.reference]}"
        _trace(orders, f"begin {label} on {socket.gethostname()} by {os.getpid()}")
        hold = orders / f"hold-{stage}"
        if stage == "run":
            words = f"echo rank {label} >> {orders / 'trace'}; while [ -e {hold} ]; do sleep 0.1; done"
            ranks = ["srun", "--kill-on-bad-exit=0", "sh", "-c", words]
            code = subprocess.run(ranks, check=False).returncode
            if code:
                yield making, StageFailed(f"srun ended with {code}")
                continue
        while hold.exists():
            time.sleep(0.05)
        size = orders / "megabytes"
        (making.scratch / "payload.bin").write_bytes(b"x" * round(float(size.read_text()) * 2**20))
        _trace(orders, f"made {label}")
        yield making, None


def _trace(orders: Path, line: str) -> None:
    file = os.open(orders / "trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


BODIES = dict.fromkeys(("links", "blocks", "solve", "run"), body)
PAYLOAD = dict.fromkeys(BODIES, ("payload.bin",))
