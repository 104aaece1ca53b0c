"""What a wide-area link does to packets: the settings of one, as they are written down, changed and recorded."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """Both directions alike, each with a wire of its own."""

    delay_ms: float = dataclasses.field(default=20.0, metadata={"help": "one-way delay"})
    jitter_ms: float = dataclasses.field(
        default=0.0, metadata={"help": "the delay wanders by at most this, both ways; packets keep their order"}
    )
    rate_mbit: float = dataclasses.field(
        default=0.0, metadata={"help": "what the wire carries per second, headers included; 0: as much as comes"}
    )
    rate_swing: float = dataclasses.field(
        default=0.0, metadata={"help": "the rate swings by this part of itself, as a sine: 0.3 is +-30 %%"}
    )
    rate_period_s: float = dataclasses.field(default=20.0, metadata={"help": "period of that swing"})
    queue_ms: float = dataclasses.field(
        default=100.0, metadata={"help": "how long a packet may wait for the wire before it is dropped instead"}
    )
    loss_percent: float = dataclasses.field(default=0.0, metadata={"help": "packets lost at random"})
    congestion: str = dataclasses.field(
        default="cubic", metadata={"help": "TCP's congestion control across the link: " + AVAILABLE.read_text().strip()}
    )
    mtu: int = dataclasses.field(default=1500, metadata={"help": "largest packet, bytes"})
    seed: int = dataclasses.field(default=0, metadata={"help": "of what happens at random"})

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms", "rate_mbit", "queue_ms"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: use a number of 0 or more")
        if self.jitter_ms > self.delay_ms:
            raise ValueError(f"jitter_ms={self.jitter_ms}: use at most the delay, {self.delay_ms}")
        if not 0 <= self.rate_swing < 1 or not self.rate_period_s > 0:
            raise ValueError(f"rate_swing={self.rate_swing}: use 0 to below 1, with a period above 0")
        if not 0 <= self.loss_percent < 100:
            raise ValueError(f"loss_percent={self.loss_percent}: use 0 to below 100")
        if self.congestion not in (available := AVAILABLE.read_text().split()):
            raise ValueError(f"congestion={self.congestion}: this kernel has {', '.join(available)}")

    def bytes_per_s(self, now_s: float) -> float:
        """The rate of the wire at a time; infinite where none is set."""
        if not self.rate_mbit:
            return math.inf
        swing = self.rate_swing * math.sin(2 * math.pi * now_s / self.rate_period_s) if self.rate_swing else 0.0
        return self.rate_mbit * 125e3 * (1 + swing)

    def write(self, path: Path) -> None:
        """Puts it in a file, whole or not at all."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> Link:
        """The link in a file."""
        return cls(**json.loads(path.read_text()))


def add_options(parser: argparse.ArgumentParser, *, change: bool = False) -> None:
    """An option per setting; with `change`, of those that a running link can still be given, and without defaults."""
    for field in dataclasses.fields(Link):
        if change and field.name in ("congestion", "mtu", "seed"):
            continue
        text = field.metadata["help"]
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=argparse.SUPPRESS,
            metavar="NAME" if isinstance(field.default, str) else "N",
            help=text if change else f"{text} [{field.default}]",
        )
