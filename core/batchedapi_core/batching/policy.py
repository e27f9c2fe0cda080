"""What a user may choose about the batches of one method."""

import enum
import math
from dataclasses import dataclass


class Strategy(enum.StrEnum):
    """When a batch that is not full is released."""

    WINDOW = "Window"
    """At the interval, or earlier when waiting is not expected to help."""
    FIXED = "Fixed"
    """At the interval, counted from the oldest request, and never earlier."""


class SizeUnit(enum.StrEnum):
    """What `max_batch_size` counts."""

    ROWS = "Rows"
    REQUESTS = "Requests"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The batching of one method.

    Raises:
        ValueError: A value is out of range.
    """

    max_batch_size: int  # >= 1, in the size unit: rows, or requests
    batch_interval: float
    """Seconds >= 0. Window: the longest a request is held back while a lane is free, 0 = never;
    a ceiling, not a target. Fixed: counted from the oldest request."""
    strategy: Strategy = Strategy.WINDOW
    latency_target: float | None = None  # seconds > 0, from arrival to answer

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
