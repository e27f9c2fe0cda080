"""What a user may choose about the batches of one method."""

import math
from dataclasses import dataclass

from batchedapi_core.batching.choices import QueueOrder, Strategy


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The batching of one method.

    Raises:
        ValueError: A value is out of range.
    """

    max_batch_size: int  # >= 1, in the size unit: rows, requests, or the method's own cost
    batch_interval: float
    """Seconds >= 0. Window: the longest a request is held back while a lane is free, 0 = never;
    a ceiling, not a target. Fixed: counted from the oldest request."""
    strategy: Strategy = Strategy.WINDOW
    latency_target: float | None = None  # seconds > 0, from arrival to answer
    preferred_sizes: tuple[int, ...] = ()
    """Ascending, each in 1..max_batch_size: a batch that is released early has one of these sizes
    if enough is queued for the smallest of them, and so has a full one where adaptation or memory
    allows less than max_batch_size. At the interval, a deadline or a drain everything goes."""
    queue_order: QueueOrder = QueueOrder.FIFO

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size: expected at least 1, got {self.max_batch_size}")
        if not 0.0 <= self.batch_interval < math.inf:
            raise ValueError(
                f"batch_interval: expected finite seconds >= 0, got {self.batch_interval}"
            )
        if self.latency_target is not None and not 0.0 < self.latency_target < math.inf:
            raise ValueError(
                f"latency_target: expected finite seconds > 0 or None, got {self.latency_target}"
            )
        if self.strategy is Strategy.ADAPTIVE and self.latency_target is None:
            raise ValueError(
                "latency_target: expected seconds under the Adaptive strategy, got None"
            )
        sizes = self.preferred_sizes
        if list(sizes) != sorted(set(sizes)) or not all(
            1 <= size <= self.max_batch_size for size in sizes
        ):
            raise ValueError(
                f"preferred_sizes: expected ascending sizes of 1 to {self.max_batch_size},"
                f" got {list(sizes)}"
            )
