"""One replica in virtual time: what the fleet asks of it, and what both simulations share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from batchedapi_core.simulation.service import COLD_FACTOR, Service

NOISE_BLOCK = 512  # factors drawn at once: one call of numpy costs as much as hundreds of numbers


@dataclass(slots=True)
class Counters:
    """Since the start of the replica; what its metrics page would say."""

    received: int = 0  # rows
    rejected: int = 0  # rows
    batches: int = 0
    rows: int = 0
    sizes: int = 0
    requests: int = 0  # in batches; a part of an oversize one counts as one
    full_batches: int = 0
    rows_squared: int = 0
    batch_seconds: float = 0.0
    row_seconds: float = 0.0
    wait_seconds: float = 0.0  # from arrival to dispatch, sum over `requests`
    answered: int = 0  # requests that ended, also refused ones

    def executed(self, rows: int, size: int, requests: int, seconds: float, *, full: bool) -> None:
        """A batch ran."""
        self.batches += 1
        self.rows += rows
        self.sizes += size
        self.requests += requests
        self.full_batches += full
        self.rows_squared += rows * rows
        self.batch_seconds += seconds
        self.row_seconds += rows * seconds


@dataclass(slots=True)
class Answers:
    """Batches since the owner last emptied it, and the requests that ended with each.

    A batch may be in it as soon as its end is known, which can be before that end.
    """

    ends: list[float] = field(default_factory=list)  # seconds, of each batch
    rows: list[int] = field(default_factory=list)  # of each batch
    requests: list[int] = field(default_factory=list)  # of each batch
    arrived: list[float] = field(default_factory=list)  # seconds, of each request
    refused: int = 0  # requests that were not answered, or too late to run

    def clear(self) -> None:
        """Begin anew."""
        self.refused = 0
        self.ends.clear()
        self.rows.clear()
        self.requests.clear()
        self.arrived.clear()


class Replica(Protocol):
    """A replica that is ready."""

    counters: Counters
    answers: Answers

    @property
    def queue_rows(self) -> int:
        """Rows that wait."""

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""

    def serve(self, times: Sequence[float], rows: Sequence[int] | None, until: float) -> None:
        """Take arrivals in and run what starts or ends before `until`, in seconds.

        Args:
            times: Ascending, from where the last call ended up to before `until`.
            rows: Of each arrival; None: one row each.
            until: inf runs everything that waits to its end.
        """

    def drain(self, now: float) -> None:
        """No arrivals follow, and nothing waits for a fuller batch any more."""

    def drained(self, now: float) -> bool:
        """Whether nothing waits or runs at `now`, up to which it was served."""


class Durations:
    """How long each batch of one replica takes; one stream of noise of its own."""

    __slots__ = ("_at", "_cold", "_factors", "_number", "_rng", "_service")

    def __init__(
        self, service: Service, seed: Sequence[int], *, cold: int, number: int = 0
    ) -> None:
        """`cold` is how many of its first batches are slow, `number` whose they are."""
        self._service = service
        self._number = number
        self._rng = np.random.default_rng(list(seed))
        self._cold = cold
        self._factors: list[float] = []
        self._at = 0

    def next(self, rows: int, size: int, start: float) -> float:
        """Seconds of the next batch, of `size` in the unit of the largest, which starts then."""
        service = self._service
        seconds = service.fixed + service.per_row * rows
        if service.pace is not None:
            seconds *= service.pace(self._number, start, size / service.max_batch_size)
        if service.noise > 0.0:
            if self._at >= len(self._factors):
                sigma = service.noise
                drawn = np.exp(self._rng.normal(-sigma * sigma / 2.0, sigma, NOISE_BLOCK))
                self._factors, self._at = drawn.tolist(), 0
            seconds *= self._factors[self._at]
            self._at += 1
        if self._cold > 0:
            self._cold -= 1
            seconds *= COLD_FACTOR
        return seconds
