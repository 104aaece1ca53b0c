"""Starting a stage's own processes: output to a log, last line heard while it goes on, its end told in one line.

Profilers run as processes of their own, because their environment (allocator, MPI) must stand before Python starts.
They die with the job that started them, however it dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crosspipe.errors import StageFailed
from crosspipe.execute.failure import tail
from crosspipe.execute.lifeline import die_with

_POLL_S = 0.1


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    what: str,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    grace_s: float = 3.0,
) -> str:
    """Runs `command` with its output in the file `log` and returns that output.

    `say` hears the last line whenever it changes. Raises StageFailed with the exit code (or signal) and the end of the
    log. If this is interrupted the process is ended: told to, and killed after `grace_s`.
    """
    parent = os.getpid()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            preexec_fn=lambda: die_with(parent),
        )
    heard = ""
    try:
        while process.poll() is None:
            time.sleep(_POLL_S)
            last = tail(log, 1)
            if say is not None and last != heard:
                heard = last
                say(f"{what}: {last}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if process.returncode:
        code = process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        raise StageFailed(f"{what} {how}; end of {log}: {tail(log, 6) or '(empty)'}")
    return log.read_text(errors="replace")
