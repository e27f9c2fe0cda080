"""What a controller of replicas sees of a simulated fleet, and how it answers."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """One live replica (not stopping), as a source of metrics sees it at this moment."""

    name: str
    created: float  # seconds of simulated time, as every time here
    ready_at: float  # may be still to come
    ready: bool
    # Counters since its start.
    received: float  # rows, accepted or not
    rejected: float  # rows
    batches: float
    rows: float  # in batches
    full_batches: float
    rows_squared: float  # sum over batches
    batch_seconds: float
    row_seconds: float  # sum over batches of rows * seconds
    # Gauges.
    queue_rows: float
    in_flight: float  # requests, queued or in a batch
    lanes: float = 1.0
    # Counters like those above: sum over batches in the unit of maxBatchSize, and of requests.
    sizes: float = 0.0
    requests: float = 0.0
    wait_seconds: float = 0.0  # from arrival to dispatch, sum over `requests`
    answered: float = 0.0  # requests that ended, also refused ones


@dataclass(frozen=True, slots=True)
class Fleet:
    """All live replicas at one moment."""

    now: float  # seconds
    pods: tuple[SimulatedPod, ...]  # ready or starting
    min_replicas: int
    max_replicas: int
    rate: float  # the true rows/s of the trace: no metric shows it, only bounds are given it


class Controller(Protocol):
    """Decides replicas; asked once a simulated second."""

    def desired(self, fleet: Fleet) -> int | None:
        """Replicas to have from now on, clamped by the fleet's limits; None: as many as now."""
