#!/usr/bin/env -S python3 -S -E
"""Stands in for sbatch, squeue, sacct, scancel, scontrol, sinfo and srun, by the name it is called by.

The folder in STANDIN_FOLDER holds `jobs.json` (what was submitted), `calls` (a line per call), `states.json` (what a
test says of a job: state, reason) and what a test orders: `no-accounting`, `deaf` (accounting does not answer now),
`refuse` (sbatch fails), `away` (no controller answers), `unconfigured` (nothing knows its controller), `no-requeue`
(scontrol requeue fails), `no-answer-N` (sbatch makes its Nth job and fails all the same), `kill-before-N` and
`kill-after-N` (whoever calls sbatch for the Nth time dies before, or after, that job is made).
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

HERE = Path(os.environ["STANDIN_FOLDER"])


def read(name):
    path = HERE / name
    return json.loads(path.read_text()) if path.exists() else {}


def given(flag):
    return next((a.partition("=")[2] for a in sys.argv if a.startswith(f"{flag}=")), "")


def lines(fields):
    """One line per job element that is asked for: `fields(job, index, state)`."""
    states, wanted, names = read("states.json"), given("--jobs").split(","), given("--name").split(",")
    for number, job in read("jobs.json").items():
        if number in wanted or job["name"] in names:
            for index in range(job["count"]):
                name = number if job["count"] == 1 else f"{number}_{index}"
                state = states.get(name) or states.get(number) or ["PENDING", "Priority"]
                line = fields(name, job, *state)
                print(line, end="\n" if line else "")


def sbatch():
    jobs = read("jobs.json")
    number = len(jobs) + 1
    text = Path(sys.argv[-1]).read_text()
    if (HERE / "refuse").exists():
        sys.exit("sbatch: error: AssocMaxSubmitJobLimit")
    if (HERE / f"kill-before-{number}").exists():
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    array = re.search(r"--array=0-(\d+)", text)
    after = re.search(r"--dependency=afterany:(\S+)", text)
    jobs[str(100 + number)] = {
        "name": re.search(r"--job-name=(\S+)", text)[1],
        "count": int(array[1]) + 1 if array else 1,
        "after": after[1].split(":") if after else [],
        "entry": text.split()[-1],
        "text": text,
        "at": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    (HERE / "jobs.json").write_text(json.dumps(jobs))
    if (HERE / f"no-answer-{number}").exists():
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    if (HERE / f"kill-after-{number}").exists():
        os.kill(os.getppid(), signal.SIGKILL)
    print(f"Submitted batch job {100 + number}")


def squeue():
    over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "GONE", "OUT_OF_MEMORY"}

    def line(name, job, state, reason=""):
        if "--format=%j|%F" in sys.argv:
            return f"{job['name']}|{name.partition('_')[0]}"
        if "--format=%S" in sys.argv:
            return job["at"]
        return "" if state.split()[0] in over else f"{name}|{state}|{job['at']}|n1|{reason or 'None'}"

    if "SQUEUE_STATES" in os.environ:
        return
    if (HERE / "away").exists():
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    if len(given("--jobs").split(",")) == 1 and given("--jobs") not in ("", *read("jobs.json")):
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    lines(line)


def sacct():
    if (HERE / "no-accounting").exists():
        sys.exit("Slurm accounting storage is disabled")
    if (HERE / "deaf").exists():
        sys.exit("sacct: error: slurmdbd: Sending PersistInit msg: Connection refused")

    def line(name, job, state, reason=""):
        if "--format=JobName,JobID" in sys.argv:
            return f"{job['name']}|{name}"
        return "" if state == "GONE" else f"{name}|{state}|{job['at']}|None assigned|{reason or '0:0'}"

    lines(line)


def scancel():
    states = read("states.json")
    states |= {name: ["CANCELLED"] for name in sys.argv[1:]}
    (HERE / "states.json").write_text(json.dumps(states))


def sinfo():
    if (HERE / "unconfigured").exists():
        sys.exit("sinfo: fatal: Could not establish a configuration source")
    print("debug* 4 nodes")


def scontrol():
    if (HERE / "unconfigured").exists():
        sys.exit(
            "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
            "scontrol: error: fetch_config: DNS SRV lookup failed\n"
            "scontrol: fatal: Could not establish a configuration source"
        )
    if "ping" in sys.argv and (HERE / "away").exists():
        (HERE / "away").unlink()  # it comes back
        sys.exit("Slurmctld(primary) at n1 is DOWN")
    if "requeue" in sys.argv and (HERE / "no-requeue").exists():
        sys.exit("scontrol: error: Requested operation is presently disabled for job 101")
    print(f"ClusterName             = standin\nMaxArraySize            = {os.environ.get('STANDIN_LARGEST', 1001)}")


called = Path(sys.argv[0]).name
with (HERE / "calls").open("a") as file:
    file.write(" ".join([called, *sys.argv[1:]]) + "\n")
globals()[called]()
