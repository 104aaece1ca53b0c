"""The development cluster is what it says: four machines of two sites, GPUs, MPI, accounting if asked, no leftovers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def test_four_machines_that_know_each_other(cluster):
    said = cluster.run("srun", "-N4", "-n4", "sh", "-c", "echo $(hostname) $(getent hosts dc1n0)").stdout
    assert sorted(said.splitlines()) == [f"{name} 127.0.11.10 dc1n0" for name in ("dc0n0", "dc0n1", "dc1n0", "dc1n1")]


def test_sites_are_features_and_partitions(cluster):
    one_each = cluster.run("srun", "-N2", "-n2", "-C", "[dc0*1&dc1*1]", "hostname").stdout.split()
    assert sorted(name[:3] for name in one_each) == ["dc0", "dc1"]
    assert sorted(cluster.run("srun", "-p", "dc1", "-N2", "hostname").stdout.split()) == ["dc1n0", "dc1n1"]


def test_gpus_are_allocated_and_counted(cluster):
    assert "CUDA_VISIBLE_DEVICES=0,1\n" in cluster.run("srun", "-N1", "--gres=gpu:2", "env").stdout
    refused = cluster.run("srun", "-N1", "--gres=gpu:3", "true", check=False)
    assert "Requested node configuration is not available" in refused.stderr


def test_mpi_ranks_are_one_world_on_four_nodes(cluster):
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.allgather(MPI.Get_processor_name()))"
    said = cluster.run("srun", "--mpi=pmi2", "-N4", "-n4", sys.executable, "-c", program).stdout.splitlines()
    assert said == ["['dc0n0', 'dc0n1', 'dc1n0', 'dc1n1']"] * 4


def test_high_requeues_what_it_preempts(cluster, tmp_path):
    low = cluster.sbatch("-N4", "--exclusive", "--requeue", f"--output={tmp_path}/low", "--wrap=sleep 600")
    cluster.wait_for_state(low, "RUNNING")
    cluster.run("srun", "-p", "high", "-N4", "--exclusive", "true")
    cluster.wait_for_state(low, "RUNNING")
    assert "Restarts=1 " in cluster.show(low)


def test_without_accounting_sacct_refuses(cluster):
    refused = cluster.run("sacct", check=False)
    assert (refused.returncode, refused.stderr.strip()) == (1, "Slurm accounting storage is disabled")


def test_with_accounting_an_ended_job_is_remembered(accounted):
    accounted.run("sbatch", "--wait", "--output=/dev/null", "--wrap=exit 3", check=False)
    ask = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=State,ExitCode")
    accounted.wait(lambda: accounted.run(*ask).stdout.split()[-1:] == ["FAILED|3:0"], "sacct, which lags", 20)


def test_settings_reach_the_controller_and_down_leaves_nothing(tmp_path, start_cluster):
    """Neither the tasks of a node whose daemon was killed, nor daemons, nor files."""
    with start_cluster("--set", "MaxArraySize=3") as own:
        refused = own.run("sbatch", "--array=0-3", "--wrap=true", check=False)
        assert "Invalid job array specification" in refused.stderr
        seconds = str(90000 + own.port)
        job = own.sbatch("-N4", f"--output={tmp_path}/out", f"--wrap=srun sleep {seconds}")
        own.wait_for_state(job, "RUNNING")
        own.wait(lambda: len(_living(f"sleep {seconds}")) >= 4, "four sleeping tasks")
        own.script("kill", "dc1n1")
        assert "dc1n1: not running" in own.script("status").stdout
        own.script("down")
        assert not _living(f"sleep {seconds}")
        assert not _living_daemons(own.root)
        assert not own.root.exists()


def test_a_directory_of_somebody_else_is_left_alone(cluster):
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest's own are too long for sockets
        work = Path(directory) / "thesis.tex"
        work.write_text("all of it")
        refused = cluster.script("up", "--root", directory, check=False)
        assert refused.returncode == 1
        assert "is not empty and no cluster of this script" in refused.stderr
        assert cluster.script("down", "--root", directory).returncode == 0
        assert work.read_text() == "all of it"


def test_options_that_cannot_be_are_refused_by_name(cluster):
    for arguments, wrong in (
        (("frobnicate",), "no command frobnicate"),
        (("up", "--port"), "the last option lacks its value"),
        (("up", "--port", "80"), "--port 80: use 1024 to 32740"),
        (("up", "--fast"), "unknown option --fast"),
        (("start", "--port", str(cluster.port), "dc7n7"), "no daemon dc7n7"),
    ):
        done = cluster.run(cluster.command, *arguments, check=False)
        assert done.returncode == 1
        assert wrong in done.stderr


def _living(command: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.endswith(command) and not line.startswith("Z")]


def _living_daemons(root: Path) -> list[str]:
    mark = f"CROSSPIPE_DEVCLUSTER={root}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append((environ.parent / "cmdline").read_text())
        except OSError:
            continue
    return found
