"""A signal in the middle of CP-SAT: the search ends at once, and the signal's own answer is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crosspipe.campaign.stopping import as_interrupt

# a search that CP-SAT cannot finish, as a job makes it: SIGINT ignored, SIGTERM and SIGUSR2 raise
SEARCH = """
import signal, sys
from crosspipe.campaign.job import cancellable
from crosspipe.campaign.slurm.job import Warned, _warned
from crosspipe.campaign.stopping import as_interrupt
from ortools.sat.python import cp_model
from concurrent.futures import ThreadPoolExecutor

cancellable()
model = cp_model.CpModel()
items = [[model.new_bool_var("") for _ in range(20)] for _ in range(21)]  # pigeons and holes: no proof in a life's time
for row in items:
    model.add_bool_or(row)
for column in zip(*items):
    for a in range(21):
        for b in range(a):
            model.add(column[a] + column[b] <= 1)
solver = cp_model.CpSolver()
solver.parameters.max_time_in_seconds = 60
solver.parameters.num_workers = 1
solver.parameters.cp_model_presolve = False
solver.parameters.symmetry_level = 0
solver.parameters.catch_sigint_signal = False
try:
    with _warned(), as_interrupt(), ThreadPoolExecutor(max_workers=1) as thread:
        solving = thread.submit(solver.solve, model)
        print("searching", flush=True)
        try:
            solving.result()
        except KeyboardInterrupt:
            solver.stop_search()
            print(solver.status_name(solving.result()), flush=True)
    print("returned")
except Warned:
    print("warned")
"""


@pytest.mark.parametrize(
    ("number", "said", "code"), [(signal.SIGUSR2, "UNKNOWN\nwarned\n", 0), (signal.SIGTERM, "UNKNOWN\n", 1)]
)
def test_a_search_ends_at_once_and_then_the_signal_is_answered(number: int, said: str, code: int) -> None:
    search = subprocess.Popen(
        [sys.executable, "-c", SEARCH],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with search:
        assert search.stdout is not None
        assert search.stdout.readline() == "searching\n"
        time.sleep(1.0)
        search.send_signal(number)
        began_s = time.monotonic()
        assert search.stdout.read() == said
        assert search.wait(timeout=50) == code
        assert time.monotonic() - began_s < 20  # of the 60 that it had


def test_the_handlers_are_as_before_and_what_has_none_is_left_alone() -> None:
    signals = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
    before = [signal.getsignal(number) for number in signals]
    seen: list[bool] = []
    with as_interrupt():
        seen.append(signal.getsignal(signal.SIGUSR2) == before[1] == signal.SIG_DFL)
    assert seen == [True]
    assert [signal.getsignal(number) for number in signals] == before
    thread = threading.Thread(target=lambda: as_interrupt().__enter__())
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in signals] == before
