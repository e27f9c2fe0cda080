"""What came of a simulation."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class ReplicaChoice(NamedTuple):
    """One answer of the controller."""

    t: float  # seconds
    ready: int  # replicas at that time
    desired: int
    reason: str  # the controller's word; "" if it gives none


class Second(NamedTuple):
    """One simulated second, for tables and pictures."""

    t: float  # its beginning, in seconds
    rate: float  # rows/s that the trace says
    ready: int
    live: int  # ready or starting
    batches: int  # ended in it, or begun in it with an end that is known already
    batch_rows: int  # rows in them
    answered: int  # requests; their latencies follow those of the second before
    missed: int  # requests answered too late, or rejected


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A run of a fleet; shares within 0..1, times in seconds."""

    seconds: float  # simulated
    requests: int  # answered or refused
    rejected: int  # requests refused, or expired before they ran
    missed: int  # requests answered later than the target, or rejected
    cost: float  # replica-seconds, from creation until drained
    scale_events: int
    mean_rows: float  # of a batch; 0 without batches
    batch_rows: dict[int, int]  # batches by their rows
    replicas: tuple[ReplicaChoice, ...]  # one each time that the controller answered
    timeline: tuple[Second, ...]
    latencies: Floats  # of the requests answered, in the order of `timeline`; what was answered
    # after its end is last

    @property
    def miss_fraction(self) -> float:
        """Of all requests; 0 of none."""
        return self.missed / self.requests if self.requests else 0.0

    @property
    def rejected_fraction(self) -> float:
        """Of all requests; 0 of none."""
        return self.rejected / self.requests if self.requests else 0.0

    @property
    def p50(self) -> float:
        """Of the answered requests; nan of none."""
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        """Of the answered requests; nan of none."""
        return self.quantile(0.9)

    @property
    def p99(self) -> float:
        """Of the answered requests; nan of none."""
        return self.quantile(0.99)

    @property
    def max_replicas(self) -> int:
        """Most replicas, ready or starting, at any time."""
        return max((second.live for second in self.timeline), default=0)

    def quantile(self, share: float) -> float:
        """Latency that this share of the answered requests does not exceed; nan of none."""
        if not self.latencies.size:
            return float("nan")
        return float(np.quantile(self.latencies, share, method="higher"))
