"""What one rank trains at a point: its part of the model, its replicas, its share of the data, and its checkpoints.

It puts the pieces together for the worker; how an iteration goes is the engine's business.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from crosspipe.errors import FieldError
from crosspipe.execute.checkpoint import Identity, load_checkpoint, newest, save_checkpoint
from crosspipe.execute.data import Batches
from crosspipe.execute.reference import relative_error
from crosspipe.execute.replication import Circles, places
from crosspipe.execute.spec import Point, Session
from crosspipe.execute.trace import Trace
from crosspipe.execute.training_step import Tied, TrainingStep, join_ends
from crosspipe.execute.transport import Transport
from crosspipe.model import SplitBackward, build_stage
from crosspipe.model.optimizer import build_optimizer
from crosspipe.problem import Problem
from crosspipe.schedule import Schedule


class Training:
    """One rank's model and optimizer, fresh from the seed. Making one is collective.

    `stages[chunk]` is what the engine computes with, `step` its `Step` and `Replicas`.
    """

    def __init__(
        self,
        session: Session,
        problem: Problem,
        rank: int,
        batches: Batches,
        circles: Circles,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        self.session, self.problem, self.batches = session, problem, batches
        self.replica, self.stage = divmod(rank, problem.stages)
        modules = [
            build_stage(
                session.model,
                session.layers,
                self.stage,
                chunk,
                traversal=problem.traversal,
                seed=session.run.seed,
                device=device,
            )
            for chunk in range(problem.chunks)
        ]
        tied = None
        weight = join_ends(modules)
        if session.model.tied_embedding:
            group = circles.of([places(problem, session.replicas)])
            tied = None if weight is None or group is None else Tied(weight, group)
        scale = 1 / (problem.microbatches * session.replicas)
        self.stages = [SplitBackward(module, loss_scale=scale) for module in modules]
        self.step = TrainingStep(
            modules,
            partial(build_optimizer, learning_rate=session.run.learning_rate),
            replicas=circles.of([range(s, session.ranks, problem.stages) for s in range(problem.stages)]),
            shard=uses_zero1(problem),
            tied=tied,
        )

    def batch(self, iteration: int, microbatch: int) -> tuple[Tensor, Tensor]:
        """This replica's microbatch: the replicas take the iteration's microbatches in turns of a whole pipeline."""
        return self.batches(iteration, self.replica * self.problem.microbatches + microbatch)

    def describe(self, *, resumed_after: int, continued_after: Sequence[int] = ()) -> dict[str, str]:
        """What a record says of it, where it is not the plain case: replicas, checkpoints, starts after the first."""
        said = {}
        if self.session.replicas > 1:
            said = {"replicas": str(self.session.replicas), "zero1": str(uses_zero1(self.problem)).lower()}
        if continued_after:
            said["continued_after_iterations"] = ", ".join(map(str, continued_after))
        return said | ({"resumed_after_iterations": str(resumed_after)} if resumed_after else {})

    def gradient_error(self, reference: Path, trace: Trace) -> float:
        """How far this rank's gradients, as they are after an iteration, are from those of one process. Collective."""
        self.step.collect_gradients()
        return relative_error(reference, self.step.parameters, factor=trace.clip_factor)


class Checkpoints:
    """Of one point: in `directory`, or in `run.checkpoint_dir` in a folder by its label. Every call but `due` is
    collective."""

    def __init__(
        self,
        training: Training,
        point: Point,
        schedule: Schedule,
        transport: Transport,
        *,
        directory: Path | None = None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        session, problem = training.session, training.problem
        if directory is None:
            assert session.run.checkpoint_dir is not None
            directory = Path(session.run.checkpoint_dir) / re.sub(r"[^\w.,=+-]+", "_", point.label)
        self.directory = directory
        self._training, self._transport, self._name, self._say = training, transport, schedule.name, say
        self._every, self._saved = session.run.checkpoint_every, 0
        self._identity = Identity(
            model=session.model,
            layers=session.layers,
            traversal=problem.traversal,
            microbatches=problem.microbatches,
            replicas=session.replicas,
            zero1=uses_zero1(problem),
            seed=session.run.seed,
            data=training.batches.digest(),
            schedule=order_digest(schedule),
            problem=problem.digest(),
        )

    def begin(self, *, resume: bool) -> int:
        """Puts back the newest checkpoint, if there is one; the number of iterations that are done.

        Raises FieldError where there is one and nobody wants it: the two runs' checkpoints would be taken for one's.
        """
        if not resume:
            if newest(self.directory, self._transport) is not None:
                raise FieldError(
                    "run.checkpoint_dir",
                    str(self.directory),
                    "holds the checkpoints of an earlier run",
                    "go on from them with run.resume=true, or give another folder",
                )
            return 0
        found = self.find()
        return 0 if found is None else self.go_on(*found)

    def find(self) -> tuple[int, dict[str, Tensor]] | None:
        """See `load_checkpoint`."""
        return load_checkpoint(self.directory, self._transport, self._identity)

    def go_on(self, iterations: int, state: dict[str, Tensor]) -> int:
        """Puts back what `find` found; the number of iterations that are done."""
        self._saved = iterations
        self._training.step.load(state)
        print(f"resumed after {iterations} iterations from {self.directory}", flush=True)
        return iterations

    def due(self, trace: Trace) -> bool:
        """Whether `run.checkpoint_every` wants the state saved after this iteration."""
        return (trace.index + 1) % self._every == 0

    def after(self, trace: Trace) -> None:
        """Saves after every `run.checkpoint_every` iterations."""
        if self.due(trace):
            self.save(trace.index + 1)

    def save(self, iterations: int) -> None:
        """Saves now, unless that is done. A slow file system is given as long as ranks may take to start."""
        if iterations == self._saved:
            return
        self._saved = iterations
        self._say(f"saving a checkpoint after {iterations} iterations")
        usual_s, self._transport.timeout_s = self._transport.timeout_s, self._training.session.run.startup_timeout_s
        save_checkpoint(
            self.directory,
            self._transport,
            self._training.step.state(),
            iterations=iterations,
            schedule_name=self._name,
            identity=self._identity,
        )
        self._transport.timeout_s = usual_s


def order_digest(schedule: Schedule) -> str:
    """SHA-256 of the order alone: who found it, and what is proven of it, makes no difference."""
    return hashlib.sha256(msgspec.json.encode((schedule.orders, schedule.messages), order="sorted")).hexdigest()


def uses_zero1(problem: Problem) -> bool:
    """Whether the problem gathers parameters before the first F, which is what makes a run shard its optimizer."""
    return any(replica.gather is not None for row in problem.data_parallel for replica in row)
