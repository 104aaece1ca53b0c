"""A stage's own processes: output in the log, failures in one line, nothing left behind when the parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crosspipe.campaign.processes import run_logged
from crosspipe.errors import StageFailed
from crosspipe.execute.failure import tail
from crosspipe.store.claims import process_started


def test_output_goes_to_the_log_and_the_last_line_is_heard(tmp_path: Path) -> None:
    heard: list[str] = []
    code = "import time; print('one', flush=True); time.sleep(0.5); print('two')"
    said = run_logged([sys.executable, "-c", code], tmp_path / "log", what="links", say=heard.append)
    assert said == "one\ntwo\n"
    assert heard[0] == "links: one"


def test_a_failure_names_code_or_signal_and_the_end_of_the_log(tmp_path: Path) -> None:
    code = "print('\\n'.join(map(str, range(20)))); print('the reason'); raise SystemExit(3)"
    with pytest.raises(
        StageFailed, match=r"^blocks ended with code 3; end of .*log: 15 \| 16 \| 17 \| 18 \| 19 \| the reason$"
    ):
        run_logged([sys.executable, "-c", code], tmp_path / "log", what="blocks")
    with pytest.raises(StageFailed, match=r"blocks was killed by SIGKILL; end of .*: \(empty\)"):
        run_logged(["sh", "-c", "kill -9 $$"], tmp_path / "other", what="blocks")


def test_the_end_of_a_log_says_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("start\n" + "the same from every rank\n\n" * 4)
    assert tail(tmp_path / "log", 6) == "start | the same from every rank"
    assert tail(tmp_path / "none", 6) == ""


def test_a_process_dies_with_the_job_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from crosspipe.campaign.processes import run_logged;"
        "run_logged(['sh', '-c', 'echo $$; exec sleep 60'], Path(sys.argv[1]), what='x')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], env=environment) as job:
        deadline = time.monotonic() + 30
        while not (text := tail(tmp_path / "log", 1)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child = int(text)
        assert process_started(child) is not None
        job.send_signal(signal.SIGKILL)
        job.wait()
    while process_started(child) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("grace_s", "ended"), [(20.0, True), (0.2, False)])
def test_what_needs_time_to_end_its_own_gets_it(tmp_path: Path, grace_s: float, ended: bool) -> None:
    code = "trap 'sleep 1; touch ended; exit 0' TERM; echo begun; while true; do sleep 0.1; done"

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_logged(
            ["env", f"--chdir={tmp_path}", "sh", "-c", code], tmp_path / "log", what="links", say=stop, grace_s=grace_s
        )
    assert (tmp_path / "ended").exists() is ended
