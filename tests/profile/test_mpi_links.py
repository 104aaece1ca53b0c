"""MPI's channel with memory that is not numpy's, and with windows larger than its buffer, between two real ranks."""

import json
import subprocess
import sys

import pytest

from crosspipe.profile.launch import mpiexec_command

PLAY = """
import json, torch
from mpi4py import MPI
from crosspipe.profile.mpi_links import MpiChannel

comm = MPI.COMM_WORLD
channel = MpiChannel(comm, 64, lambda size: torch.full((size,), comm.rank + 5, dtype=torch.uint8), "mpi_device")
trips = []
if comm.rank == 0:
    trips += channel.ping(1, 64, 3)
    trips += channel.stream(1, 8, 20, 2, both=False)
    trips += channel.stream(1, 8, 20, 2, both=True)
else:
    channel.pong(0, 64, 3)
    channel.drain(0, 8, 20, 2, both=False)
    channel.drain(0, 8, 20, 2, both=True)
found = comm.gather([channel.name, len(trips), min(trips, default=1) > 0, channel._in.unique().tolist()])
if comm.rank == 0:
    print(json.dumps(found))
"""


@pytest.mark.serial
def test_both_ends_exchange_what_they_hold() -> None:
    start = mpiexec_command(2, [])
    command = [*start[: start.index(sys.executable)], sys.executable, "-c", PLAY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["mpi_device", 7, True, [6]], ["mpi_device", 0, True, [5]]]
