"""The batch script of an array: resources in, text out, by submitit. A pure function, with golden texts in the tests.

The script is one Python process on the first node of the job (`exec`, so that Slurm's warning signal reaches it); that
process starts what has ranks by srun.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crosspipe.campaign.cluster import Resources

SIGNAL = "USR2"  # the warning before a time limit; NCCL and some MPIs use USR1


def parameters(resources: Resources, name: str, after: Sequence[str], *, logs: Path, count: int) -> dict[str, Any]:
    """What submitit's executor is told for `count` jobs with their output in `logs`. `after` are the job numbers that
    must have ended."""
    further: dict[str, Any] = {
        "signal": f"B:{SIGNAL}@{resources.warning_s}",
        "requeue" if resources.requeue else "no-requeue": True,
        **{key: value for key, value in resources.sbatch.items() if value is not None and value is not False},
    }
    if "%" in str(logs):  # else a pattern of sbatch
        further["output"] = f"{logs}".replace("%", "%%") + f"/{'%A_%a' if count > 1 else '%j'}_0_log.out"
    given = {
        "job_name": name,
        "time": resources.minutes,
        "nodes": resources.nodes or 1,
        "ntasks_per_node": resources.tasks_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "gpus_per_node": resources.gpus_per_node,
        "mem": None if resources.memory_gib is None else f"{round(resources.memory_gib * 1024)}M",
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "exclude": resources.exclude,
        "dependency": f"afterany:{':'.join(after)}" if after else None,
        "array_parallelism": resources.at_once or count,
    }
    setup = [*resources.setup, *(f"export {key}={shlex.quote(str(v))}" for key, v in resources.environment.items())]
    return {
        **{key: value for key, value in given.items() if value is not None},
        **({"setup": setup} if setup else {}),
        "additional_parameters": further,
        "stderr_to_stdout": True,
        "use_srun": False,
        "wckey": None,  # else submitit's own, which some sites refuse
    }


def command(submission: Path) -> str:
    """The script's last line: it becomes the job's process."""
    words = [sys.executable, "-u", "-m", "crosspipe.campaign.slurm.job", str(submission)]
    return f"exec {shlex.join(words)}"


def batch_script(
    resources: Resources, *, name: str, count: int, logs: Path, submission: Path, after: Sequence[str] = ()
) -> str:
    """The whole text for an array of `count` tasks, as it is submitted."""
    from submitit.slurm.slurm import _make_sbatch_string

    given = parameters(resources, name, after, logs=logs, count=count)
    return str(
        _make_sbatch_string(command=command(submission), folder=logs, map_count=count if count > 1 else None, **given)
    )
