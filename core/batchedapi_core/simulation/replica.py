"""A replica of a simulated fleet: its service, its counters, and the batches that it runs."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np

from batchedapi_core import contract
from batchedapi_core.batching import (
    Batch,
    BatchPolicy,
    QueueOrder,
    Request,
    SizeUnit,
    Strategy,
    lengths_of,
)
from batchedapi_core.service_model import ServiceTime
from batchedapi_core.simulation.virtual_replica import (
    BatchRun,
    Books,
    End,
    Refused,
    ReplicaPlan,
    VirtualReplica,
)

QUEUED_TARGETS: Final = 4.0
"""Latency targets' worth of work that a queue holds, where nothing else bounds it."""
COLD_BATCHES: Final = 20
RESTART: Final = 10.0
"""Seconds in which a model process that hung is replaced and has its model: an assumption, since no
manifest says it. It counts only where a batch takes longer than the timeout."""
COLD_FACTOR: Final = 2.0
"""The first batches of a new process take this much longer: caches, allocators, lazy kernels."""
Pace = Callable[[int, float, float], float]
"""Times longer that a batch takes, by its replica's number, the seconds since the beginning and the
share of the largest batch that it is: a slow node, inputs that grow, a t(n) that is no line."""


@dataclass(frozen=True, slots=True)
class NoisyService:
    """A batch of n rows takes fixed + per_row * n seconds, times log-normal noise of mean 1.

    Raises:
        ValueError: A value with which nothing could be served.
    """

    fixed: float  # seconds
    per_row: float  # seconds
    max_batch_size: int  # in `size_unit`
    batch_interval: float  # seconds
    latency_target: float | None = None  # seconds; a request answered later is a miss
    noise: float = 0.05  # standard deviation of the logarithm
    queue_limit: int | None = None
    """Rows waiting at most; None: four targets' worth of work and at least two batches, or without
    a target as many as `max_in_flight` allows."""
    strategy: Strategy = Strategy.FIXED
    max_latency: float | None = None  # seconds; requests expected to take longer are refused
    max_in_flight: float = inf  # requests in the replica, queued or running
    timeout: float = inf  # seconds after which nobody wants the answer
    lanes: int = 1  # batches at once
    size_unit: SizeUnit = SizeUnit.ROWS
    queue_order: QueueOrder = QueueOrder.FIFO
    cold_batches: int = COLD_BATCHES  # of a new replica, each COLD_FACTOR slower
    per_length: float = 0.0  # seconds for each row and unit of the longest row's length
    lengths: tuple[int, ...] = ()
    """Of rows, to draw from; empty: they have none."""
    pace: Pace | None = None  # None: every replica keeps to the line, at any time
    time: ServiceTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for accepted, expected in (
            (0.0 <= self.fixed < inf, "fixed: finite seconds >= 0"),
            (0.0 <= self.per_row < inf, "per_row: finite seconds >= 0"),
            (self.fixed + self.per_row > 0.0, "fixed + per_row > 0 seconds"),
            (0.0 <= self.per_length < inf, "per_length: finite seconds >= 0"),
            (self.max_batch_size >= 1, "max_batch_size >= 1"),
            (0.0 <= self.batch_interval < inf, "batch_interval: finite seconds >= 0"),
            (
                self.latency_target is None or 0.0 < self.latency_target < inf,
                "latency_target: finite seconds > 0, or none",
            ),
            (
                self.queue_limit is None or self.queue_limit >= self.max_batch_size,
                "queue_limit >= max_batch_size, or none",
            ),
            (0.0 <= self.noise < 1.0, "noise within [0, 1)"),
            (self.lanes >= 1, "lanes >= 1"),
        ):
            if not accepted:
                raise ValueError(f"service: expected {expected}, got {self}")
        per_row = self.per_row + self.per_length * self.mean_length
        object.__setattr__(self, "time", ServiceTime(self.fixed, per_row))

    @property
    def mean_length(self) -> int:
        """Of rows; 0: they have none."""
        return round(sum(self.lengths) / max(1, len(self.lengths)))

    def seconds(self, rows: int, longest: int) -> float:
        """Seconds of a batch without noise; `longest` is the length of its longest row."""
        return self.fixed + (self.per_row + self.per_length * longest) * rows

    @property
    def capacity(self) -> float:
        """Rows per second of one replica whose batches are all full of one-row requests."""
        return self.lanes * self.max_batch_size / self.time.seconds(self.max_batch_size)

    @property
    def most_queued(self) -> float:
        """Rows that may wait; inf: only `max_in_flight` bounds them."""
        if self.queue_limit is not None:
            return self.queue_limit
        if self.latency_target is None or self.max_in_flight < inf:
            return inf
        work = QUEUED_TARGETS * self.latency_target * self.capacity
        return int(max(2 * self.max_batch_size, work))

    @property
    def batch_policy(self) -> BatchPolicy:
        """As the serving image would be told."""
        return BatchPolicy(
            self.max_batch_size,
            self.batch_interval,
            self.strategy,
            self.max_latency,
            queue_order=self.queue_order,
            pads_to=sys.maxsize if self.lengths else 0,
        )


NOISE_BLOCK = 512  # factors drawn at once: one call of numpy costs as much as hundreds of numbers


@dataclass(slots=True)
class ReplicaCounters:
    """Since the start of the replica; what its metrics page would say."""

    received: float = 0  # rows
    rejected: float = 0  # rows
    batches: float = 0
    rows: float = 0
    sizes: float = 0
    requests: float = 0  # in batches; a part of an oversize one counts as one
    full_batches: float = 0
    rows_squared: float = 0
    batch_seconds: float = 0.0
    row_seconds: float = 0.0
    wait_seconds: float = 0.0  # from arrival to dispatch, sum over `requests`
    answered: float = 0  # requests that ended, also refused ones
    squares_received: float = 0  # sum over requests of rows^2

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
class AnsweredBatches:
    """Batches since the owner last emptied it, and the requests that ended with each."""

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


class Durations:
    """How long each batch of one replica takes; one stream of noise of its own."""

    __slots__ = ("_at", "_cold", "_factors", "_number", "_rng", "_service")

    def __init__(
        self, service: NoisyService, seed: Sequence[int], *, cold: int, number: int = 0
    ) -> None:
        """`cold` is how many of its first batches are slow, `number` whose they are."""
        self._service = service
        self._number = number
        self._rng = np.random.default_rng(list(seed))
        self._cold = cold
        self._factors: list[float] = []
        self._at = 0

    def next(self, rows: int, size: int, start: float, longest: int = 0) -> float:
        """Seconds of the next batch, of `size` in the unit of the largest, which starts then."""
        service = self._service
        seconds = service.seconds(rows, longest)
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


_METHOD: Final = "predict"


class SimulatedReplica(Books):
    """A `VirtualReplica` of one method, with its books.

    Its clients are strangers: nobody is known to come back after an answer.
    """

    __slots__ = (
        "_answered",
        "_durations",
        "_most_queued",
        "_random",
        "_replica",
        "_service",
        "answers",
        "counters",
    )

    def __init__(self, service: NoisyService, durations: Durations, ready_at: float) -> None:
        self.counters = ReplicaCounters()
        self.answers = AnsweredBatches()
        self._answered = 0  # requests, with the batch that is being booked
        self._durations = durations
        self._service = service
        self._most_queued = service.most_queued
        plan = ReplicaPlan(
            {_METHOD: service.batch_policy},
            counts_rows=service.size_unit is SizeUnit.ROWS,
            processes=service.lanes,
            timeout=service.timeout,
            max_in_flight=service.max_in_flight,
            restart=RESTART,
        )
        self._random = random.Random(0)  # noqa: S311 - no cryptography, and all are alike
        self._replica = VirtualReplica(plan, self._run, self, self._random, ready_at)
        if service.max_latency is not None:  # as a model process that is to meet one times its own
            warmed_up = self._replica.scheduler.methods[_METHOD].batcher.warmed_up
            mean = service.mean_length
            for size in contract.batch_size_buckets(service.max_batch_size):
                for length in {mean, mean // 4}:  # an example and its beginning
                    warmed_up(size, service.seconds(size, length), size, length)

    @property
    def queue_rows(self) -> int:
        """Rows that wait."""
        return self._replica.queue_rows

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return self._replica.in_flight

    @property
    def fixed(self) -> float | None:
        """Seconds of a batch by t(n, L), as it has learned it; None: rows have no lengths."""
        batcher = self._replica.scheduler.methods[_METHOD].batcher
        fixed, _, per_length = batcher.learned(1.0)
        return fixed if per_length > 0.0 else None

    def drain(self, now: float) -> None:
        """Wait for no fuller batch any more: no arrivals follow."""
        self._replica.drain(now)

    @property
    def drained(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._replica.in_flight and not self._replica.running

    def serve(self, times: Sequence[float], rows: Sequence[int] | None, until: float) -> None:
        """Take arrivals in and run what starts or ends before `until`, in seconds.

        Args:
            times: Ascending, from where the last call ended up to before `until`.
            rows: Of each arrival; None: one row each.
            until: inf runs everything that waits to its end.
        """
        replica, counters, most = self._replica, self.counters, self._most_queued
        lengths, shapes = self._service.lengths, None
        i, count = 0, len(times)
        while True:
            at = times[i] if i < count else inf
            event = replica.next_event
            if at <= event and at < until:
                size = 1 if rows is None else rows[i]
                i += 1
                counters.received += size
                counters.squares_received += size * size
                full = most < inf and size > most - replica.queue_rows
                if lengths:
                    shapes = [(length,) for length in self._random.choices(lengths, k=size)]
                if full or isinstance(replica.arrive(_METHOD, size, at, shapes=shapes), Refused):
                    counters.rejected += size
                    self._refuse()
            elif event >= until:
                return
            else:
                replica.step(event)

    def _refuse(self) -> None:
        self.answers.refused += 1
        self.counters.answered += 1

    # ------------------------------------------------------------ the model and the books

    def _run(self, batch: Batch) -> BatchRun:
        longest = lengths_of(batch.requests)[1] if self._service.lengths else 0
        return BatchRun(self._durations.next(batch.rows, batch.size, batch.started, longest))

    def started(self, batch: Batch, now: float) -> None:
        """See Books."""
        self.counters.wait_seconds += sum([now - request.arrived for request in batch.requests])

    def ended(self, request: Request, how: End, now: float) -> None:  # noqa: ARG002 - `ran` says when
        """See Books."""
        if how is End.ANSWERED:
            self.answers.arrived.append(request.arrived)
            self._answered += 1
        else:
            self._refuse()

    def expired(self, rows: int) -> None:
        """See Books."""
        self.counters.rejected += rows

    def ran(self, batch: Batch, now: float) -> None:
        """See Books."""
        answers, counters = self.answers, self.counters
        answered, self._answered = self._answered, 0
        counters.answered += answered
        answers.ends.append(now)
        answers.rows.append(batch.rows)
        answers.requests.append(answered)
        full = batch.size >= self._service.max_batch_size
        seconds = now - batch.started
        counters.executed(batch.rows, batch.size, len(batch.requests), seconds, full=full)
