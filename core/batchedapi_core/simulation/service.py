"""What one simulated replica is: how long its batches take, and how they are formed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from batchedapi_core.batching import BatchPolicy, QueueOrder, SizeUnit, Strategy
from batchedapi_core.service_model import ServiceTime

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
class Service:
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
    max_in_flight: float = math.inf  # requests in the replica, queued or running
    timeout: float = math.inf  # seconds after which nobody wants the answer
    lanes: int = 1  # batches at once
    size_unit: SizeUnit = SizeUnit.ROWS
    preferred_sizes: tuple[int, ...] = ()
    queue_order: QueueOrder = QueueOrder.FIFO
    cold_batches: int = COLD_BATCHES  # of a new replica, each COLD_FACTOR slower
    pace: Pace | None = None  # None: every replica keeps to the line, at any time
    time: ServiceTime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for accepted, expected in (
            (0.0 <= self.fixed < math.inf, "fixed: finite seconds >= 0"),
            (0.0 <= self.per_row < math.inf, "per_row: finite seconds >= 0"),
            (self.fixed + self.per_row > 0.0, "fixed + per_row > 0 seconds"),
            (self.max_batch_size >= 1, "max_batch_size >= 1"),
            (0.0 <= self.batch_interval < math.inf, "batch_interval: finite seconds >= 0"),
            (
                self.latency_target is None or 0.0 < self.latency_target < math.inf,
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
        object.__setattr__(self, "time", ServiceTime(self.fixed, self.per_row))

    @property
    def capacity(self) -> float:
        """Rows per second of one replica whose batches are all full of one-row requests."""
        return self.lanes * self.max_batch_size / self.time.seconds(self.max_batch_size)

    @property
    def most_queued(self) -> float:
        """Rows that may wait; inf: only `max_in_flight` bounds them."""
        if self.queue_limit is not None:
            return self.queue_limit
        if self.latency_target is None or self.max_in_flight < math.inf:
            return math.inf
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
            self.preferred_sizes,
            self.queue_order,
        )
