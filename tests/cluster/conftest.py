"""The real Slurm of `slurm/devcluster`, once per session and kind; every test here is marked `cluster`.

Where it cannot be had the tests fail and say so: they are never skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from slurm_campaigns import Standin

HERE = Path(__file__).parent
STANDIN = HERE / "standin"
CROSSPIPE = str(Path(sys.executable).with_name("crosspipe"))
SCRIPT = HERE.parents[1] / "slurm" / "devcluster" / "cluster.sh"
NODES = ("dc0n0", "dc0n1", "dc1n0", "dc1n1")


LONG = ("test_sweep", "test_training", "test_scripts", "test_wan_runs", "test_profile_campaign")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is here, and puts the long ones first: none begins when the other workers are nearly through."""
    here = [item for item in items if HERE in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.cluster)
    others = [item for item in items if item not in here]
    items[:] = [*others, *sorted(here, key=lambda item: item.path.stem not in LONG)]


class Devcluster:
    """A running development cluster: its command line, and what Slurm says. What fails raises with what it said."""

    command = str(SCRIPT)

    def __init__(self, port: int) -> None:
        self.port = port
        self.root = Path(f"/tmp/crosspipe-devcluster-{port}")
        foreign = ("SLURM", "SBATCH", "SUBMITIT")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environment["SLURM_CONF"] = str(self.root / "slurm.conf")

    def script(self, command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`cluster.sh COMMAND` for this cluster."""
        return self.run(self.command, command, "--port", str(self.port), *arguments, check=check)

    def run(
        self, *command: str, check: bool = True, within_s: float = 240, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command that may talk to this cluster."""
        done = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=within_s, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def crosspipe(self, folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command line, in a folder, as somebody logged in to this cluster calls it."""
        return self.run("env", f"--chdir={folder}", "COLUMNS=200", CROSSPIPE, *arguments, check=check, within_s=600)

    def sbatch(self, *arguments: str) -> str:
        """Submits; returns the job's id."""
        return self.run("sbatch", "--parsable", *arguments).stdout.strip()

    def jobs(self, *columns: str) -> list[list[str]]:
        """The queue, a row per job or array task."""
        said = self.run("squeue", "--noheader", "--array", f"--format={'|'.join(columns)}").stdout
        return [line.split("|") for line in said.splitlines()]

    def history(self) -> list[tuple[str, str]]:
        """(number, name) of every job and array the controller still remembers, ended ones too."""
        said = self.run("squeue", "--noheader", "--states=all", "--format=%F|%j").stdout
        return sorted({(number, name) for number, _, name in (line.partition("|") for line in said.splitlines())})

    def show(self, job: str) -> str:
        """All that the controller says of a job, in a line per task of an array."""
        return self.run("scontrol", "--oneliner", "show", "job", job).stdout

    def state(self, job: str) -> str:
        """A job's state word, from the controller."""
        return self.show(job).split("JobState=")[1].split()[0]

    def wait_for_state(self, job: str, *states: str, within_s: float = 60) -> None:
        """Waits until a job is in one of `states`."""
        self.wait(lambda: self.state(job) in states, f"job {job} in {' or '.join(states)}", within_s)

    def idle(self) -> bool:
        """Whether no job is left and every node is idle."""
        states = self.run("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%T").stdout.split()
        return not self.jobs("%i") and states == ["idle"] * len(NODES)

    def reset(self) -> None:
        """No jobs, all daemons up, all nodes idle: as a test wants to find it."""
        for daemon in ("controller", *NODES):
            self.script("start", daemon)
        self.run("scancel", "--user=root", check=False)
        self.wait(self.idle, "idle nodes", 90)

    @staticmethod
    def wait(true: Callable[[], bool], what: str, within_s: float = 60) -> None:
        """Polls until `true()`; AssertionError naming `what` when time is up."""
        deadline = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < deadline, f"waited {within_s:.0f} s in vain for {what}"
            time.sleep(0.1)


@contextmanager
def started(*options: str) -> Iterator[Devcluster]:
    """A cluster of its own, with the options of `cluster.sh up`; ended with everything that runs on it."""
    needed = ("slurmctld", "slurmd", "munged", "slurmdbd", "mariadbd")
    if missing := [command for command in needed if shutil.which(command) is None]:
        pytest.fail(f"no {', '.join(missing)} on this machine: {SCRIPT} install brings Slurm (root, Debian 12)")
    for port in range(18000, 32000, 20):
        cluster = Devcluster(port)
        try:
            cluster.root.mkdir()  # whoever makes it has the port: several sessions may run at once
        except FileExistsError:
            continue
        break
    try:
        cluster.script("up", *options)
        yield cluster
    finally:
        cluster.script("down", check=False)
        shutil.rmtree(cluster.root, ignore_errors=True)  # where not even `up` began


@pytest.fixture(scope="session")
def _plain() -> Iterator[Devcluster]:
    with started() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _with_accounting() -> Iterator[Devcluster]:
    with started("--accounting") as cluster:
        yield cluster


@pytest.fixture
def start_cluster() -> Callable[..., AbstractContextManager[Devcluster]]:
    """`with start_cluster(OPTION, ...) as own`: another cluster, for one test."""
    return started


@pytest.fixture
def cluster(_plain: Devcluster) -> Devcluster:
    """A cluster without accounting, idle."""
    _plain.reset()
    return _plain


@pytest.fixture
def accounted(_with_accounting: Devcluster) -> Devcluster:
    """A cluster with accounting, idle."""
    _with_accounting.reset()
    return _with_accounting


@pytest.fixture
def talk_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Standin]:
    """`talk_to(cluster)`: a campaign there whose bodies stand in, submitted by this process."""

    def make(cluster: Devcluster, store: Path | None = None) -> Standin:
        campaign = Standin(cluster, tmp_path, store)
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        root = HERE.parents[1]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(STANDIN), str(root), os.environ.get("PYTHONPATH", ""))))
        monkeypatch.setenv("CROSSPIPE_STANDIN", str(campaign.orders))
        return campaign

    return make


@pytest.fixture
def campaign(cluster: Devcluster, talk_to: Callable[..., Standin]) -> Standin:
    """On the cluster without accounting."""
    return talk_to(cluster)
