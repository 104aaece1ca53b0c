"""Parts of the engine by themselves: its cost per action, emulated delays between two processes, what D frees."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path

from support.engine_bar import Asked, Group, Measured, Samples, Show

from crosspipe.execute.plan import Format
from crosspipe.problem import Hop, Problem, Spread
from crosspipe.problem.architecture import ModelConfig
from crosspipe.problem.spread import spread

SIZES = {"1 KB": 2**10, "64 KB": 2**16, "1 MB": 2**20, "16 MB": 2**24}
DELAYS_MS = (1, 3, 10, 30, 100)
MODES = ("idle", "computing")
SLOWER = 1.5  # a delay must be this many times the real transfer; others count as late
PERCENTILES = {"p50": (0.5, 0.1), "p95": (0.95, 0.5)}  # which, and what it must be at most, in ms
REPETITIONS = 80  # of a delay: an interval of p95 needs 72
LATE = "ms late"
RESULTS = "results.pickle"  # of the receiving process: more than a pipe holds until somebody reads it


def part_groups(*, quick: bool) -> list[Group]:
    """Cost per action, delays, memory."""
    sizes = tuple(SIZES)[:1] if quick else tuple(SIZES)
    transfers = tuple(
        Asked("Emulated delay", _key(size, mode, "real transfer"), "ms") for mode in MODES for size in sizes
    )
    delays = tuple(
        asked
        for mode in MODES
        for size in sizes
        for ms in DELAYS_MS
        for asked in (
            Asked("Emulated delay", _key(size, mode, f"{ms} ms: late"), "%"),
            *(
                Asked("Emulated delay", _key(size, mode, f"{ms} ms: error, {what}"), "ms", must)
                for what, (_, must) in PERCENTILES.items()
            ),
        )
    )
    return [
        Group((Asked("Engine", "cost per action", "µs", 100, 30),), partial(_cost, 4 if quick else 40)),
        Group((*transfers, *delays), partial(_delays, sizes, 8 if quick else REPETITIONS)),
        Group((Asked("Engine", "activations held after D, of those after F", "%", 80),), _held),
    ]


def _key(size: str, mode: str, what: str) -> str:
    return f"{size}, {mode}, {what}"


def percentile(samples: Sequence[float], share: float) -> Spread:
    """The value below which `share` of a distribution lies, by its `samples`, with a distribution-free 95 % interval.

    Its ends are order statistics: of n samples a binomial number lies below the percentile. An end that would lie
    outside of them is None, and so is the other then.
    """
    ordered, n = sorted(samples), len(samples)
    at_most = list(accumulate(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)))
    low = max((rank for rank in range(1, n + 1) if at_most[rank - 1] <= 0.025), default=None)
    high = min((rank for rank in range(1, n + 1) if 1 - at_most[rank - 1] <= 0.025), default=None)
    known = low is not None and high is not None
    return Spread(
        median=ordered[math.ceil(share * n) - 1],
        low=ordered[low - 1] if known else None,
        high=ordered[high - 1] if known else None,
        samples=n,
    )


class _Empty:
    """A stage whose blocks take no time."""

    def __init__(self) -> None:
        import torch

        self.nothing = torch.zeros(1)

    def forward(self, mb, x, target=None, *, fused=False):
        return self.nothing

    def input_grad(self, mb, grad):
        return self.nothing

    def weight_grad(self, mb, piece=0, pieces=1):
        pass

    def backward(self, mb, grad):
        return self.nothing


class _NoStep:
    def begin(self) -> None: ...
    def square(self) -> float:
        return 1.0

    def clip(self, square: float, largest: float) -> float:
        return 1.0

    def update(self) -> None: ...


def _cost(repetitions: int, show: Show) -> Samples:
    """Four ranks as threads of one process, which take turns: the wall time of an iteration over all its actions."""
    import torch

    from crosspipe.execute.clock import Clock
    from crosspipe.execute.engine import Engine, Settings
    from crosspipe.execute.inprocess import Hub, InProcessTransport
    from crosspipe.execute.lowering import lower
    from crosspipe.solver import solve

    problem = Problem.uniform(stages=4, microbatches=32, sites=2, forward_ms=1, input_grad_ms=1, weight_grad_ms=1)
    plan = lower(problem, solve(problem, "zbh1"), message_bytes=4)
    actions = sum(len(rank.actions) for rank in plan.ranks)
    hub = Hub(problem.stages)
    nothing = torch.zeros(1)
    spans: list[list[int]] = [[] for _ in plan.ranks]

    def run(rank: int) -> None:
        engine = Engine(
            problem,
            plan.ranks[rank],
            stages=[_Empty()],
            step=_NoStep(),
            transport=InProcessTransport(hub, rank),
            clock=Clock(),
            wires={},
            message_format=Format((1,), "float32", 4),
            batch=lambda iteration, microbatch: (nothing, nothing),
            settings=Settings(paced=False, emulate=False),
        )
        for index in range(repetitions + 3):
            trace = engine.iterate(index)
            spans[rank].append(trace.blocks_end_ns - trace.begin_ns)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(problem.stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    return {"cost per action": [max(row) / actions / 1e3 for row in list(zip(*spans, strict=True))[3:]]}


def _delays(sizes: tuple[str, ...], repetitions: int, show: Show) -> Samples:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="crosspipe-bench-") as folder:
        ends = [
            context.Process(target=_delay_end, args=(rank, sizes, repetitions, folder), daemon=True) for rank in (0, 1)
        ]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
            if end.exitcode:
                raise RuntimeError(f"a process of the delay measurement ended with {end.exitcode}")
        transfers, errors = pickle.loads(Path(folder, RESULTS).read_bytes())
    found: dict[str, Sequence[float] | Measured] = {_key(*where, "real transfer"): t for where, t in transfers.items()}
    for (size, mode, ms), samples in errors.items():
        found[_key(size, mode, f"{ms} ms: late")] = [100 * (1 - len(fitting(samples, ms)) / len(samples))]
        mostly = 2 * len(fitting(samples, ms)) >= len(samples)
        values = [error for error, _ in (fitting(samples, ms) if mostly else samples)]
        for what, (share, _) in PERCENTILES.items():
            of = spread(values) if what == "p50" else percentile(values, share)
            found[_key(size, mode, f"{ms} ms: error, {what}")] = Measured(of, None if mostly else LATE)
    return found


def fitting(samples: Sequence[tuple[float, float]], delay_ms: float) -> list[tuple[float, float]]:
    """Those of (error, real transfer), in ms, that a delay is long enough for; the others are late messages."""
    return [(error, transfer) for error, transfer in samples if delay_ms >= SLOWER * transfer]


def _delay_end(rank: int, sizes: tuple[str, ...], repetitions: int, folder: str) -> None:
    """Rank 0 sends, rank 1 receives; a receive is posted before the sender is told to go."""
    import torch

    from crosspipe.execute.clock import Clock
    from crosspipe.execute.emulation import OwnWire
    from crosspipe.execute.gloo import GlooTransport, use_loopback
    from crosspipe.execute.priority import promptly
    from crosspipe.execute.transport import Header

    use_loopback()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-4)
    transport = GlooTransport(rank, 2, rendezvous=f"file://{Path(folder, 'meet')}", timeout_s=60, prompt=True)
    clock, wire = Clock(), OwnWire()
    go, told = torch.zeros(1), Header(0, 0, 0, 0, 0)

    def once(tensor: torch.Tensor, delay_ns: int) -> tuple[float, float]:
        """(error of the arrival, real transfer) in ms, as rank 1 sees them."""
        if rank == 0:
            transport.post_receive(1, torch.empty(1)).wait()
            ready = clock.now()
            departure = wire.depart(ready, Hop(latency_ns=delay_ns))
            transport.send(1, Header(0, ready, *departure), tensor)
            return 0.0, 0.0
        receipt = transport.post_receive(0, tensor)
        transport.send(0, told, go)
        header = receipt.wait()
        received = clock.now()
        off = abs(clock.wait_until(header.not_before_ns) - header.not_before_ns)
        return off / 1e6, (received - header.ready_ns) / 1e6

    transfers: dict[tuple[str, str], list[float]] = {}
    errors: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for mode in MODES:
        with _busy(mode == "computing"), promptly():
            for size in sizes:
                tensor = torch.zeros(SIZES[size] // 4)
                transfers[size, mode] = [once(tensor, 0)[1] for _ in range(repetitions // 4)]
                for ms in DELAYS_MS:
                    errors[size, mode, ms] = [once(tensor, ms * 1_000_000) for _ in range(repetitions)]
    if rank == 1:
        Path(folder, RESULTS).write_bytes(pickle.dumps((transfers, errors)))
    transport.allgather(b"")
    transport.close()


@contextmanager
def _busy(computing: bool) -> Iterator[None]:
    """Meanwhile a thread of this process multiplies matrices."""
    import torch

    ended = threading.Event()

    def multiply() -> None:
        a = torch.randn(384, 384)
        while not ended.is_set():
            a = (a @ a).clamp_(-1, 1)

    thread = threading.Thread(target=multiply)
    if computing:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if computing:
            thread.join()


def _held(show: Show) -> Samples:
    import torch

    from crosspipe.model import SplitBackward, build_stage
    from crosspipe.model.memory import StorageTracker

    config = ModelConfig(
        vocabulary=256, hidden=256, intermediate=688, heads=4, kv_heads=4, layers=6, sequence=128, microbatch_size=4
    )
    stage = SplitBackward(build_stage(config, ((1,), (4,), (1,)), 1, seed=0))
    parameters = list(stage.stage.parameters())
    with (tracker := StorageTracker()):
        x = torch.randn(config.microbatch_size, config.sequence, config.hidden)
        y = stage.forward(0, x)
        gradient = torch.ones_like(y)
        del x, y
        after_forward = tracker.live_bytes - gradient.nbytes
        stage.input_grad(0, gradient)
        del gradient
        after_input_grad = tracker.live_bytes - sum(p.grad.nbytes for p in parameters if p.grad is not None)
    return {"activations held after D, of those after F": [100 * after_input_grad / after_forward]}
