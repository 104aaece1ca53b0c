"""What a dead rank leaves behind, and who is to blame."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from crosspipe.execute.failure import Report, find_culprit, position_file, report_file
from crosspipe.execute.position import SETTING_UP, PositionWriter, read_position
from crosspipe.store import save


def test_a_position_survives_a_kill(tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom crosspipe.execute.position import PositionWriter\n"
        "writer = PositionWriter(Path(sys.argv[1]))\nwriter.say('lowering', point=4)\n"
        "writer.plan(['compute F0', 'send it'])\nwriter.at(7, 1)\nos.kill(os.getpid(), 9)"
    )
    file = tmp_path / "rank0.position"
    assert read_position(file) is None
    before = time.monotonic_ns()
    assert subprocess.run([sys.executable, "-c", code, str(file)], check=False).returncode == -9
    position = read_position(file)
    assert position[:3] == (4, 7, 1)
    assert before < position.stamp_ns < time.monotonic_ns()
    assert str(position) == "iteration 7, action 1: send it"


def leave(directory: Path, rank: int, words: str, *, point: int = 0) -> None:
    writer = PositionWriter(position_file(directory, rank))
    writer.say("setting up", point=point)
    writer.plan([words])
    writer.at(2, 0)


def report(directory: Path, rank: int, *, witness: bool, stamp: int = 0) -> None:
    save(report_file(directory, rank), Report(message=f"word of {rank}", witness=witness, stamp_ns=stamp))


@pytest.mark.parametrize(
    ("codes", "reports", "blamed", "what"),
    [
        # killed, and its peers lost it
        ([1, -9, 1, None], {0: True, 2: True}, 1, "was killed by SIGKILL"),
        # two failed by themselves: the first did
        ([1, 1, 1, 1], {0: True, 1: False, 2: False, 3: True}, 2, "failed: word of 2"),
        # ended without a word
        ([1, 1, 3, 1], {0: True, 1: True, 3: True}, 2, "ended with code 3"),
        # silent while the others lost it: the one that was not itself waiting
        ([None, None, 1, 1], {2: True, 3: True}, 1, "hangs"),
        # NCCL's watchdog aborted those that waited for it; and an abort that nothing else explains
        ([-6, None, -6, None], {}, 1, "hangs"),
        ([-6, 1, -6, 3], {}, 1, "ended with code 1"),
        ([1, -6, 1, 1], {0: True, 2: True, 3: True}, 1, "was killed by SIGABRT"),
        # nothing but witnesses
        ([1, 1, 1, 1], {0: True, 1: True, 2: True, 3: True}, 3, "failed: word of 3"),
    ],
)
def test_who_is_to_blame(tmp_path, codes, reports, blamed, what):
    for rank in range(4):
        leave(tmp_path, rank, "compute F1" if rank == 1 else "wait for message F1 from rank 1")
    for rank, witness in reports.items():
        report(tmp_path, rank, witness=witness, stamp=10 - rank)
    culprit = find_culprit(tmp_path, codes, {})
    assert (culprit.rank, culprit.what) == (blamed, what)
    assert find_culprit(tmp_path, codes, {}, all_ended=True).what == (
        "ended without a word" if what == "hangs" else what
    )
    assert culprit.position.words == ("compute F1" if blamed == 1 else "wait for message F1 from rank 1")


def test_before_the_first_point_there_is_no_iteration(tmp_path):
    PositionWriter(position_file(tmp_path, 0))
    position = read_position(position_file(tmp_path, 0))
    assert position[:3] == (SETTING_UP, SETTING_UP, SETTING_UP)
    assert str(position) == "starting"
