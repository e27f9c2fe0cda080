"""A reactive autoscaler that is told what others must measure: a bound, not a product."""

import math
from typing import Final

from autoscaling.trailing import Trailing, due
from batchedapi_core.simulation import SimulatedFleet

PERIOD: Final = 5
HOLD: Final = 180.0


class PerfectReactive:
    """Knows the present rate and a replica's capacity; waits for replicas to start as all do.

    Down to the most wished for in the last 180 s, as ours. It does not know the future: what it
    misses is what reacting costs.

    Args:
        capacity: Rows/s to give one replica.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._wished = Trailing(HOLD)

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """Replicas every 5 s."""
        if not due(fleet.now, PERIOD):
            return None
        self._wished.add(fleet.now, max(1, math.ceil(fleet.rate / self._capacity - 1e-9)))
        return round(self._wished.largest())
