"""What a configuration asks for, as Slurm understands it; and the configuration that `crosspipe doctor` proposes."""

from __future__ import annotations

import re

from crosspipe.campaign.cluster import Resources
from crosspipe.campaign.slurm.script import batch_script

ALL_OF_THEM = Resources(
    minutes=45, nodes=2, tasks_per_node=2, at_once=3, cpus_per_task=2, gpus_per_node=2, memory_gib=1.5,
    partition="debug", account="project-sub:test1", qos="normal", constraint="[dc0*1&dc1*1]", exclude="dc0n[1]",
    setup=("echo \"it's set up\" > set-up",), environment={"WORDS": "it's two words"},
    sbatch={"comment": "it's mine (really); $HOME", "nice": 7, "exclusive": True, "contiguous": False, "hint": None},
    warning_s=120, requeue=False,
)  # fmt: skip


def test_every_option_reaches_slurm_as_it_was_meant(accounted, tmp_path):
    """By the words of `scontrol show job`, on a cluster that knows accounts and qualities of service."""
    accounted.run("sacctmgr", "--immediate", "add", "account", "project-sub:test1")
    accounted.run("sacctmgr", "--immediate", "add", "user", "root", "account=project-sub:test1")
    earlier = accounted.sbatch("--hold", "--output=/dev/null", "--wrap=true")
    text = batch_script(
        ALL_OF_THEM, name="crosspipe-run-1a2b3c4d", count=4, logs=tmp_path / "my logs",
        submission=tmp_path / "no such.json", after=(earlier,),
    )  # fmt: skip
    script = tmp_path / "job.sh"
    script.write_text(text)
    accounted.run("sbatch", "--test-only", str(script))
    job = accounted.sbatch("--hold", str(script))
    said = accounted.show(job)
    for word in (
        "ArrayTaskId=0-3%3", "JobName=crosspipe-run-1a2b3c4d", "Nice=7", "Account=project-sub:test1", "QOS=normal",
        f"Dependency=afterany:{earlier}(unfulfilled)", "Requeue=0", "TimeLimit=00:45:00", "Partition=debug",
        "ExcNodeList=dc0n1", "NumNodes=2-2", "NumTasks=4", "CPUs/Task=2", "NtasksPerN:B:S:C=2:0:*:*",
        "MinMemoryNode=1.50G", "Features=[dc0*1&dc1*1]", "OverSubscribe=NO", "Contiguous=0",
        "Comment=it's mine (really); $HOME", "TresPerNode=gres:gpu:2",
        f"StdOut={tmp_path}/my logs/{job}_",
    ):  # fmt: skip
        assert f" {word}" in said


def test_the_doctor_proposes_what_slurm_takes(cluster, tmp_path):
    """Its configuration of this cluster, saved as it says, plans a campaign over both sites."""
    said = cluster.crosspipe(tmp_path, "doctor").stdout
    assert re.search(r"ok +Slurm +debug\* 4 nodes", said)
    assert "accounting is off: states come from squeue and the store" in said
    taken = re.findall(r"taken +(\w+) +(\d) nodes for (\d+) min", said)
    assert taken == [("links", "2", "15"), ("blocks", "1", "30"), ("solve", "1", "60"), ("run", "2", "60")]
    name, proposal = re.search(r"save it as conf/cluster/(\w+)\.yaml:\n+(# .*?)\n\S*taken", said, re.DOTALL).groups()
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    (tmp_path / "conf" / "cluster" / f"{name}.yaml").write_text(proposal)
    planned = cluster.crosspipe(tmp_path, "run", f"cluster={name}", "dry_run=true", "model=tiny", "schedule=1f1b")
    assert "2 nodes for 60 min, 2 GPUs a node, debug, [dc0*1&dc1*1]" in planned.stdout
