"""What each stage of the road does with an artifact's request: the bodies of the jobs.

Each body takes makings of its stage and yields how each ended, as it ends. The work itself is in the other parts of the
package; here it is called with what the request says, and its files are put where they belong.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crosspipe.campaign import unfinished
from crosspipe.campaign.config import NetworkConfig, PipelineConfig
from crosspipe.campaign.costs import STAND_IN_END_NS, CostsConfig, make_costs
from crosspipe.campaign.job import Body, Context, Ended, unexpected
from crosspipe.campaign.problems import build_problem
from crosspipe.campaign.processes import run_logged
from crosspipe.campaign.stopping import as_interrupt
from crosspipe.errors import CrosspipeError, StageFailed
from crosspipe.execute.spec import ANCHORED_FILE, RAW_FILE, RECORD_FILE, Point, RunConfig, Session
from crosspipe.model.config import ALLOCATOR_ENVIRONMENT, ModelConfig
from crosspipe.problem import BlockCosts, LinkTable
from crosspipe.store import Making, load, save
from crosspipe.store.files import wait_for

if TYPE_CHECKING:
    from crosspipe.campaign.slurm.ranks import Node, Ranks

_OPTIONS = (
    "place",
    "site_of_rank",
    "model",
    "traversal",
    "layers",
    "every_node",
)  # of a profile's request: not passed on as --options


def links(making: Making, context: Context) -> None:
    """links.json and samples.parquet: ping-pong between all ranks, started inside this job by srun or mpiexec."""
    config = making.request.config
    sites = config["site_of_rank"]
    module = [
        "crosspipe.profile.links",
        f"--out={making.scratch}",
        f"--ranks={len(sites)}",
        f"--sites={','.join(map(str, sites))}",
        *_options(config),
    ]
    ranks = _placed(context)
    command, environment = _command(ranks, len(sites), module, context)
    log = context.log_dir / "links.log"
    run_logged(command, log, what="links", environment=environment, say=context.say, grace_s=_grace_s(context))
    if ranks is not None and not wait_for(making.scratch, ["links.json"], context.patience_s):
        ranks.check(load(making.scratch / "links.json", LinkTable).node_of_rank)


def _grace_s(context: Context) -> float:
    """How long what starts ranks may take to end them. A killed srun leaves them behind; Slurm's KillWait is 30 s."""
    return 35.0 if context.task.cluster.on_nodes else 3.0


def _placed(context: Context) -> Ranks | None:
    """The ranks of this job's task on its nodes; None where they are processes of this machine."""
    if not context.task.cluster.on_nodes:
        return None
    from crosspipe.campaign.slurm.ranks import ranks_of

    return ranks_of(context.task, context.log_dir / "hosts")


def _command(ranks: Ranks | None, size: int, module: list[str], context: Context) -> tuple[list[str], dict[str, str]]:
    """(command, environment) that start `python -m *module` on `size` ranks."""
    given = context.task.cluster.mpiexec
    program = [sys.executable, "-m", *module]
    if given is not None:
        hosts = "localhost" if ranks is None else ",".join(node.name for node in ranks.nodes)
        words = [word.replace("{hosts}", hosts) for word in given]
        return [*words, "-n", str(size), *context.task.resources.container, *program], {}
    if ranks is not None:
        return ranks.command(program)
    from crosspipe.profile.launch import mpiexec_command

    return mpiexec_command(size, module), {}


def blocks(making: Making, context: Context) -> None:
    """blocks.json: time, memory and bytes of every block, in a process with the allocator set for it; where the costs
    are given or counted, just those. With `every_node` all nodes profile, and nodes.json says what each took."""
    config = making.request.config
    if "costs" in config:
        costs = msgspec.convert(config["costs"], CostsConfig)
        layers = tuple(map(tuple, config["layers"]))
        save(
            making.scratch / "blocks.json",
            make_costs(costs, msgspec.convert(config["model"], ModelConfig), config["traversal"], layers),
        )
        return
    model = context.log_dir / f"model-{making.request.key[:12]}.yaml"
    model.write_bytes(msgspec.json.format(msgspec.json.encode(config["model"])))  # JSON is YAML
    command = [
        *context.task.resources.container,
        sys.executable,
        "-m",
        "crosspipe.profile.blocks",
        f"--model={model}",
        f"--stages={len(config['layers'])}",
        f"--chunks={len(config['layers'][0])}",
        f"--traversal={config['traversal']}",
        f"--layers={','.join('+'.join(map(str, row)) for row in config['layers'])}",
        f"--out={making.scratch}",
        *_options(config),
    ]
    ranks = _placed(context) if config.get("every_node") else None
    if ranks is None:
        run_logged(
            command, context.log_dir / "blocks.log", what="blocks", environment=ALLOCATOR_ENVIRONMENT, say=context.say
        )
        return
    from crosspipe.profile.nodes import merge

    command, environment = ranks.command([*command[len(context.task.resources.container) :], "--per-node=true"])
    environment |= ALLOCATOR_ENVIRONMENT
    log = context.log_dir / "blocks.log"
    run_logged(command, log, what="blocks", environment=environment, say=context.say, grace_s=_grace_s(context))
    missing = wait_for(making.scratch, _parts(ranks.nodes, ranks.resources.tasks_per_node), context.patience_s)
    if missing:
        raise StageFailed(f"blocks: no profile came from {', '.join(missing)}; see {log}")
    # only inside one allocation are the nodes of the run known to be these
    placed = context.task.cluster.executor == "allocation" and ranks.resources.tasks_per_node == 1
    for finding in merge(making.scratch, [node.name for node in ranks.nodes] if placed else None).findings:
        context.say(f"{finding.name}: {finding.detail}")


def _parts(nodes: Sequence[Node], per_node: int) -> list[str]:
    """The files that the tasks on `nodes` write, as `crosspipe.profile.nodes.node_name` names them."""
    counts = Counter(node.name for node in nodes)
    if per_node == 1:
        return [f"blocks.{name}.json" for name in counts]
    return [f"blocks.{name}.{task}.json" for name, count in counts.items() for task in range(count)]


def solve(making: Making, context: Context) -> None:
    """problem.json and schedule.json (with its certificate)."""
    from crosspipe.solver import Progress
    from crosspipe.solver import solve as solve_problem

    request = making.request
    problem = build_problem(
        load(context.input(making, "blocks", "blocks.json"), BlockCosts),
        load(context.input(making, "links", "links.json"), LinkTable) if "links" in request.inputs else None,
        network=msgspec.convert(request.config["network"], NetworkConfig),
        pipeline=msgspec.convert(request.config["pipeline"], PipelineConfig),
        pace=request.config["pace"],
    )
    name = request.config["schedule"]["name"]
    label = context.task.names.get(request.reference, name)
    context.say(label)

    def hear(progress: Progress) -> None:
        context.say(f"{label}: {progress.makespan_ns / 1e6:.2f} ms, gap {progress.gap:.2%}, {progress.elapsed_s:.0f} s")

    options = {**request.config["solver"], **{k: v for k, v in request.config["schedule"].items() if k == "pieces"}}
    with as_interrupt():
        schedule = solve_problem(problem, name, progress=hear, **options)
    save(making.scratch / "problem.json", problem)
    save(making.scratch / "schedule.json", schedule)


def run(makings: Sequence[Making], context: Context) -> Iterator[Ended]:
    """run.json, timelines.parquet and raw_timelines.parquet of every making, in one session of the ranks.

    All makings of a task share model, split and run configuration; norm and optimizer are predicted at the run's pace,
    and where the costs do not know them a stand-in's are given a time of their own. On nodes, a run goes on from where
    an earlier job, or an earlier life of this one, has kept it.
    """
    from crosspipe.execute.session import run_points

    config = makings[0].request.config
    costs = load(context.input(makings[0], "blocks", "blocks.json"), BlockCosts)
    settings = msgspec.convert({**config["run"], **context.task.settings}, RunConfig)
    pace = settings.pace or 1.0
    norm_ns, step_ns = (
        tuple(round(duration * pace) for duration in known) or (STAND_IN_END_NS,) * costs.stages
        for known in (costs.gradient_norm_ns, costs.optimizer_step_ns)
    )
    campaign, cluster = Path(context.task.campaign), context.task.cluster
    kept = unfinished.is_kept(cluster, settings)
    by_label: dict[str, Making] = {}
    points = []
    for making in makings:
        label = context.task.names.get(making.request.reference, making.request.key[:12])
        by_label[label] = making
        points.append(
            Point(
                label=label,
                problem=str(context.input(making, "solve", "problem.json")),
                schedule=str(context.input(making, "solve", "schedule.json")),
                out=str(making.scratch),
                kept=str(unfinished.folder_of(campaign, making.request.key)) if kept else None,
            )
        )
    session = Session(
        model=msgspec.convert(config["model"], ModelConfig),
        layers=tuple(tuple(row) for row in config["layers"]),
        points=tuple(points),
        run=settings,
        gradient_norm_ns=norm_ns,
        optimizer_step_ns=step_ns,
        emulate=config["emulate"],
        origin="emulated" if config["emulate"] else config.get("origin", "real link"),
        directory=str(context.log_dir),
        replicas=config["replicas"],
        keep_every_s=cluster.keep_every_s or 0.0,
    )

    def hear(label: str, iteration: int, total: int) -> None:
        context.say(f"{label}: iteration {iteration}/{total}")

    ranks = _placed(context)
    context.say("starting the ranks")
    for outcome in run_points(session, on_progress=hear, launch=None if ranks is None else ranks.launch):
        making = by_label[outcome.point.label]
        yield making, _with_cause(outcome.failure, context)
        if context.store.done(making.request) is not None:
            unfinished.forget(campaign, making.request.key)


def _with_cause(failure: CrosspipeError | None, context: Context) -> CrosspipeError | None:
    """A failure of ranks with what srun said of them: only it saw how they ended."""
    if failure is None or not context.task.cluster.on_nodes:
        return failure
    from crosspipe.campaign.slurm.ranks import first_error

    said = first_error(context.log_dir)
    return StageFailed(f"{failure}; srun: {said}") if said else failure


def each(body: Callable[[Making, Context], None]) -> Body:
    """A body for many makings from one for a single making: an error ends its own making only."""

    def run(makings: Sequence[Making], context: Context) -> Iterator[Ended]:
        for making in makings:
            try:
                body(making, context)
            except CrosspipeError as error:
                yield making, error
            except Exception as error:  # noqa: BLE001 - a fault of ours in one point must not end the others
                traceback.print_exc()
                yield making, unexpected(error)
            else:
                yield making, None

    return run


def _options(config: dict[str, object]) -> list[str]:
    """The profiler's own options of a request, as `--name=value`."""
    return [
        f"--{name.replace('_', '-')}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in config.items()
        if name not in _OPTIONS and value is not None
    ]


# what a stage's artifact consists of, at least: it is not finished before all of it can be seen
PAYLOAD: dict[str, tuple[str, ...]] = {
    "links": ("links.json", "samples.parquet"),
    "blocks": ("blocks.json",),
    "solve": ("problem.json", "schedule.json"),
    "run": (RECORD_FILE, ANCHORED_FILE, RAW_FILE),
}
BODIES: dict[str, Body] = {"links": each(links), "blocks": each(blocks), "solve": each(solve), "run": run}
