"""One rank of a run session: `python -m crosspipe.execute.worker SESSION.json`.

Rank and size come from RANK and WORLD_SIZE, or from Slurm; whoever started it, it finds its peers by the session's
rendezvous, executes the points one after the other, and ends with an error that says what it was doing. Rank 0 writes
the results.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from crosspipe.errors import FieldError, UsageError
from crosspipe.execute.clock import Clock, CommonClock, Starts
from crosspipe.execute.continuation import NOTHING, Continuation
from crosspipe.execute.data import Batches, read_corpus
from crosspipe.execute.emulation import open_wires
from crosspipe.execute.engine import Engine, Settings
from crosspipe.execute.environment import describe
from crosspipe.execute.failure import PeerLost, log_file, position_file, report_failures
from crosspipe.execute.gloo import GlooTransport
from crosspipe.execute.groups import DistGroup
from crosspipe.execute.lifeline import die_with
from crosspipe.execute.loop import run_iterations
from crosspipe.execute.lowering import lower_point
from crosspipe.execute.partial import TraceLog, trace_file, traces_of_all
from crosspipe.execute.peak import peak_activation_bytes
from crosspipe.execute.plan import Plan, RankPlan
from crosspipe.execute.position import PositionWriter
from crosspipe.execute.priority import WORDS, may_be_prompt
from crosspipe.execute.recording import Result, write_point
from crosspipe.execute.reference import write_reference
from crosspipe.execute.replanning import Replanner
from crosspipe.execute.replication import Circles, OnePipeline, Pipeline, one_share, senders
from crosspipe.execute.spec import PARENT, Point, Session
from crosspipe.execute.swap import Source, Swapper, WatchedFile
from crosspipe.execute.trace import Trace
from crosspipe.execute.training import Checkpoints, Training
from crosspipe.execute.transport import Transport, compare_channels
from crosspipe.execute.variation import Bandwidth, Jitter, read_bandwidth
from crosspipe.model import build_stage, token_loss
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule
from crosspipe.store import Rank, load

if TYPE_CHECKING:
    from crosspipe.execute.cuda_engine import CudaEngine


def main(arguments: Sequence[str]) -> None:
    """Runs this rank to its end; raises what went wrong."""
    if len(arguments) != 1:
        raise UsageError("SESSION.json", list(arguments), "is not one file", "python -m crosspipe.execute.worker FILE")
    rank, size = rank_and_size(dict(os.environ))
    session = load(arguments[0], Session)
    if size != session.ranks:
        raise UsageError(
            "WORLD_SIZE",
            size,
            f"the session has {len(session.layers)} stages x {session.replicas} replicas",
            f"start {session.ranks} ranks",
        )
    directory = Path(session.directory)
    directory.mkdir(parents=True, exist_ok=True)
    _write_to(log_file(directory, rank))
    if PARENT in os.environ:  # a launcher on this machine says who it is
        die_with(int(os.environ[PARENT]), signal.SIGKILL)
    report_failures(rank, directory)
    position = PositionWriter(position_file(directory, rank))
    _quiet_interpreter(session.run.threads)
    position.say("waiting for the other ranks")
    # for words also where tensors go over NCCL
    transport = GlooTransport(
        rank,
        size,
        rendezvous=session.rendezvous,
        timeout_s=session.run.startup_timeout_s,
        prompt=session.keeps_time,
    )
    batches = Batches(
        read_corpus(session.run.data),
        size=session.model.microbatch_size,
        sequence=session.model.sequence,
        seed=session.run.seed,
    )
    member = _Member(session, transport, batches, position)
    for number, point in enumerate(session.points):
        member.execute(number, point)
    transport.close()


def rank_and_size(environment: dict[str, str]) -> tuple[int, int]:
    """(rank, number of ranks) from RANK and WORLD_SIZE, else SLURM_PROCID and SLURM_NTASKS; UsageError without."""
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if all(name in environment for name in names):
            return int(environment[names[0]]), int(environment[names[1]])
    raise UsageError(
        "RANK", None, "this process does not know which rank it is", "set RANK and WORLD_SIZE, or use srun"
    )


class _Member:
    """This rank, for one point after the other."""

    def __init__(self, session: Session, transport: Transport, batches: Batches, position: PositionWriter) -> None:
        self.session, self.transport, self.batches, self.position = session, transport, batches, position
        self.directory = Path(session.directory)
        self.pipeline = Pipeline(transport, len(session.layers))
        run, self.device, self.channels = session.run, torch.device("cpu"), None
        open_group = partial(DistGroup, timeout_s=run.timeout_s, opening_s=run.startup_timeout_s)
        if run.transport == "nccl":
            from crosspipe.execute.cuda_worker import own_device, watchdog_s
            from crosspipe.execute.nccl import NcclChannels, NcclGroup

            patience_s = watchdog_s(session)
            self.device, open_group = own_device(os.environ), partial(NcclGroup, timeout_s=patience_s)
            first = transport.rank - self.pipeline.rank
            self.channels = NcclChannels(first=first, timeout_s=patience_s)
        self.circles = Circles(transport.rank, open_group)

    def execute(self, number: int, point: Point) -> None:
        """One point: a fresh model, its plan, warm-up and measured iterations, its files. Collective."""
        session, rank, run = self.session, self.transport.rank, self.session.run
        self.transport.timeout_s = run.startup_timeout_s  # not all ranks take equally long to set up
        self.position.say("reading the schedule", point=number)
        print(f"{time.strftime('%H:%M:%S')} {point.label}", flush=True)
        problem, schedule = load(point.problem, Problem), load(point.schedule, Schedule)
        session.check(problem)
        plan = lower_point(session, problem, schedule) if point.plan is None else load(point.plan, Plan)
        own = plan.ranks[self.pipeline.rank]
        self.position.say("building the model")
        training = Training(session, problem, rank, self.batches, self.circles, device=self.device)
        checkpoints = (
            None
            if run.checkpoint_dir is None
            else Checkpoints(training, point, schedule, self.transport, say=self.position.say)
        )
        kept = None if point.kept is None else self._continuation(training, number, point, schedule)
        past = NOTHING if kept is None else kept.begin()
        if past.traces:  # checkpoints of the user's own are then those of an earlier start of this run
            first, done = past.traces[0].index, past.done
        else:
            first = done = 0 if checkpoints is None else checkpoints.begin(resume=run.resume)
        self.position.say("measuring activations")
        peak = peak_activation_bytes(problem, own, training.stages, session.message_format, self.batches)
        reference = self._reference(problem) if run.check_gradients and done == 0 else None
        self.position.say("comparing channels with the other ranks")
        compare_channels(OnePipeline(self.transport, problem.stages), own, session.message_format)
        common = CommonClock(self.transport)
        wire_senders = senders(plan.wire_senders, problem.stages, session.replicas)
        if session.emulate:
            check_wires(wire_senders, self._ranks(problem, common.clock))
        bandwidth = self._bandwidth(common.clock)
        self._name_actions(own)
        settings = Settings(
            paced=run.pace is not None,
            emulate=session.emulate,
            gradient_norm_ns=max(session.gradient_norm_ns, default=0),
            optimizer_step_ns=max(session.optimizer_step_ns, default=0),
            clip_norm=run.clip_norm,
        )
        engine: Engine | CudaEngine
        if self.channels is not None:
            from crosspipe.execute.cuda_worker import build_engine

            engine = build_engine(
                problem,
                plan,
                training,
                self.pipeline,
                self.channels,
                common,
                self.device,
                wire_senders=wire_senders,
                settings=settings,
                at=self.position.at,
            )
        else:
            engine = Engine(
                one_share(problem, session.replicas),
                own,
                stages=training.stages,
                step=training.step,
                replicas=training.step,
                transport=self.pipeline,
                clock=common.clock,
                wires=open_wires(wire_senders, rank, self.directory, bandwidth=bandwidth),
                message_format=session.message_format,
                batch=training.batch,
                settings=settings,
                jitter=Jitter(round(run.jitter_ms * 1e6), run.seed) if run.jitter_ms else None,
                at=self.position.at,
            )
        source = self._source(number, point, problem, schedule)
        swapper = None if run.swap_file is None and run.replan_above is None else self._swapper(engine, plan, source)
        known = past.note.gradient_relative_error
        errors = [] if known is None else [known]

        def compare_gradients(trace: Trace) -> None:
            if trace.index == 0 and reference is not None:
                errors.append(training.gradient_error(reference, trace))

        def keep_clock(trace: Trace) -> None:
            common.keep(trace)
            engine.keep_time(common.clock)

        log = TraceLog(trace_file(session, number, point, rank), past.traces)

        def keep(trace: Trace) -> None:
            # never older than checkpoints of the user's own: those are taken for this run's where there is a past
            if kept is not None and (kept.due(trace) or (checkpoints is not None and checkpoints.due(trace))):
                kept.save(trace.index + 1, log, max(errors, default=None))

        self.transport.allgather(b"")
        self.transport.timeout_s = run.timeout_s
        run_iterations(
            engine,
            range(done, first + run.warmup + run.iterations),
            before=[] if swapper is None else [swapper.before],
            after=[
                say_progress,
                log,
                compare_gradients,
                keep_clock,
                keep,
                *([checkpoints.after] if checkpoints else []),
            ],
        )
        if isinstance(source, Replanner):
            source.close()
        if checkpoints is not None:
            last = first + run.warmup + run.iterations
            if kept is not None:
                kept.save(last, log, max(errors, default=None))
            checkpoints.save(last)
        log.close()
        self.position.say("collecting what the ranks measured")
        self.transport.timeout_s = run.startup_timeout_s
        mine = Result(peak_activation_bytes=peak, gradient_relative_error=max(errors, default=None))
        rows = self.transport.allgather(msgspec.json.encode(mine))
        ranks = self._ranks(problem, common.clock)
        if rank == 0:
            self.position.say("writing the record")
            results = [msgspec.json.decode(row, type=Result) for row in rows]
            write_point(
                session,
                point,
                problem,
                plan,
                traces_of_all(session, number, point),
                results,
                ranks,
                {
                    **describe(run.transport),
                    **({"priority": WORDS[may_be_prompt()]} if session.keeps_time else {}),
                    **training.describe(resumed_after=first, continued_after=past.note.continued_after),
                },
                swaps=() if swapper is None else swapper.swaps,
            )

    def _bandwidth(self, clock: Clock) -> dict[str | None, Bandwidth]:
        """What varies the emulated wires, from now on. Collective."""
        file, origin = self.session.run.bandwidth_trace, Starts(self.transport).agree(clock)
        return {} if file is None else {wire: b.since(origin) for wire, b in read_bandwidth(file).items()}

    def _continuation(self, training: Training, number: int, point: Point, schedule: Schedule) -> Continuation:
        """What keeps this point for another start of the ranks, and knows of earlier ones."""
        assert point.kept is not None
        state = Checkpoints(
            training, point, schedule, self.transport, directory=Path(point.kept), say=self.position.say
        )
        log = trace_file(self.session, number, point, self.transport.rank)
        return Continuation(state, log, self.transport, every_s=self.session.keep_every_s)

    def _name_actions(self, plan: RankPlan) -> None:
        self.position.plan([*map(str, plan.actions), "gradient norm and optimizer step with the other ranks"])

    def _source(self, number: int, point: Point, problem: Problem, schedule: Schedule) -> Source | None:
        """What offers other plans: `run.swap_file`, or what the first rank finds where links change."""
        session, run = self.session, self.session.run
        if run.swap_file is not None:
            return WatchedFile(run.swap_file, lambda offered: lower_point(session, problem, offered))
        if run.replan_above is not None and self.transport.rank == 0:
            return Replanner(session, number, point, problem, schedule, above=run.replan_above)
        return None

    def _swapper(self, engine: Engine | CudaEngine, plan: Plan, source: Source | None) -> Swapper:
        return Swapper(
            engine,
            plan,
            source,
            blocking_sends=self.session.run.post_ahead_ns is not None,
            adopted=self._name_actions,
        )

    def _ranks(self, problem: Problem, clock: Clock) -> tuple[Rank, ...]:
        """Where every rank runs. Collective."""
        rank = self.transport.rank
        mine = Rank(
            rank=rank,
            stage=self.pipeline.rank,
            site=problem.sites[self.pipeline.rank],
            host=platform.node(),
            pid=os.getpid(),
            device=str(self.device),
            clock_offset_ns=clock.offset_ns,
            clock_error_ns=clock.error_ns,
            clock_drift_ppm=clock.drift_ppm,
        )
        rows = self.transport.allgather(msgspec.json.encode(mine))
        return tuple(msgspec.json.decode(row, type=Rank) for row in rows)

    def _reference(self, problem: Problem) -> Path:
        """The file with the gradients of one process; rank 0 makes it where it is not there yet."""
        session = self.session
        microbatches = problem.microbatches * session.replicas
        identity = msgspec.json.encode(
            (session.model, session.run.seed, session.run.data, microbatches), order="sorted"
        )
        path = self.directory / f"reference-{hashlib.sha256(identity).hexdigest()[:16]}.safetensors"
        if self.transport.rank == 0 and not path.exists():
            self.position.say("computing the gradients of one process")
            model = build_stage(session.model, ((session.model.layers,),), 0, seed=session.run.seed, device=self.device)
            write_reference(path, model, token_loss, self.batches, microbatches)
        self.position.say("waiting for the gradients of one process")
        deadline = time.monotonic() + session.run.startup_timeout_s
        while not path.exists():
            if time.monotonic() > deadline:
                raise PeerLost(0, f"rank 0 made no {path.name} within {session.run.startup_timeout_s:g} s")
            time.sleep(0.05)
        return path


def check_wires(wire_senders: Mapping[str, Sequence[int]], ranks: Sequence[Rank]) -> None:
    """Raises FieldError where ranks on different hosts would have to share an emulated wire's state."""
    for wire, sharing in wire_senders.items():
        hosts = sorted({ranks[sender].host for sender in sharing})
        if len(hosts) > 1:
            raise FieldError(
                "wire",
                wire,
                f"ranks {', '.join(map(str, sharing))} share it, on hosts {', '.join(hosts)}",
                "an emulated wire's senders must be on one host: place them so, or use a traversal with one sender",
            )


def say_progress(trace: Trace) -> None:
    """A line in the log of the rank that has the loss."""
    if trace.loss is not None:
        spent = (trace.step_end_ns - trace.begin_ns) / 1e6
        print(f"iteration {trace.index}: loss {trace.loss:.4f}, {spent:.1f} ms", flush=True)


def _write_to(log: Path) -> None:
    """From now on, what this process prints goes to the end of `log`."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.enable()


def _quiet_interpreter(threads: int) -> None:
    """So many threads for mathematics, no surprises from the garbage collector, and quick turns between threads."""
    torch.set_num_threads(threads)
    gc.disable()
    sys.setswitchinterval(1e-4)  # a spinning wait must not keep the sending threads from the interpreter


if __name__ == "__main__":
    main(sys.argv[1:])
