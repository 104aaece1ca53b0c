"""Links that are not constant: jitter of the latency and a trace of the bandwidth, both optional and deterministic.

They belong to the emulation only: the Problem, and so the prediction, keeps its constant link. The same seed gives the
same delays whatever the machine, the ranks' timing or the order in which messages are sent.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import msgspec

from crosspipe.errors import FieldError
from crosspipe.problem import Hop
from crosspipe.schedule.order import Message

_FIELD = "run.bandwidth_trace"


class Jitter(NamedTuple):
    """Every message over a hop with latency takes longer by an exponential random time of mean `mean_ns`."""

    mean_ns: int
    seed: int = 0

    def vary(self, hop: Hop, iteration: int, message: Message) -> Hop:
        """The hop as this message meets it."""
        if not self.mean_ns or not hop.latency_ns:
            return hop
        drawn = random.Random(f"{self.seed} {iteration} {message}").expovariate(1 / self.mean_ns)
        return msgspec.structs.replace(hop, latency_ns=hop.latency_ns + round(drawn))


class Bandwidth(NamedTuple):
    """A wire's bandwidth over time, as a factor of the Problem's: `factors[i]` from `starts_ns[i]` on, 1 before."""

    starts_ns: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()

    def finish_ns(self, start_ns: int, serialisation_ns: int) -> int:
        """When a message whose service begins at `start_ns` has left, if it took `serialisation_ns` at factor 1."""
        now, left = start_ns, float(serialisation_ns)
        step = bisect_right(self.starts_ns, start_ns)
        while left > 0:
            factor = self.factors[step - 1] if step else 1.0
            until = self.starts_ns[step] if step < len(self.starts_ns) else None
            if until is None or now + left / factor <= until:
                return now + math.ceil(left / factor)
            left -= (until - now) * factor
            now, step = until, step + 1
        return now

    def since(self, origin_ns: int) -> Bandwidth:
        """The same, with its time counted from `origin_ns` of the common clock."""
        return Bandwidth(tuple(start + origin_ns for start in self.starts_ns), self.factors)


def read_bandwidth(path: str | Path) -> dict[str | None, Bandwidth]:
    """Traces by wire (None: all that are not named) from a CSV file with columns `start_s`, `factor`, maybe `wire`.

    Times count from the start of the point and must rise; a factor is above 0. Raises FieldError naming the line.
    """
    rows: dict[str | None, list[tuple[int, float]]] = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FieldError(_FIELD, str(path), f"cannot be read ({error.strerror})", "give a CSV file") from error
    except UnicodeDecodeError as error:
        raise FieldError(_FIELD, str(path), f"is not text in UTF-8 ({error.reason})", "save it as UTF-8") from error
    for row in (reader := csv.DictReader(text.splitlines())):
        try:
            start, factor = float(row["start_s"]), float(row["factor"])
        except (KeyError, TypeError, ValueError):
            start, factor = math.nan, math.nan
        known = rows.setdefault(row.get("wire") or None, [])
        if not (0 <= start < math.inf and 0 < factor < math.inf) or (known and round(start * 1e9) <= known[-1][0]):
            raise FieldError(
                f"{_FIELD}, line {reader.line_num} of {path}",
                ",".join(str(value) for value in row.values()),
                "is no step of a bandwidth",
                "columns start_s (rising, from 0) and factor (above 0), and wire where it is for one only",
            )
        known.append((round(start * 1e9), factor))
    if not rows:
        raise FieldError(_FIELD, str(path), "has no steps", "give lines of start_s, factor below that header")
    return {wire: Bandwidth(*(tuple(column) for column in zip(*steps, strict=True))) for wire, steps in rows.items()}
