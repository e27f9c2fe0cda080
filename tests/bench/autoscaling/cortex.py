"""The autoscaler of Cortex, with its defaults.

Source: cortexlabs/cortex `pkg/autoscaler/autoscaler.go` (`autoscaleFn`). One thing is kinder here:
where the most recommended in 300 s is above the replicas, the original lets a wish to go down fall
through to its upward rule, which grants it at once; here the replicas stay.
"""

import math
from typing import Final

from autoscaling.trailing import Trailing, due, in_flight
from batchedapi_core.simulation import SimulatedFleet

TICK: Final = 10
WINDOW: Final = 60.0
UP_STABILIZATION: Final = 60.0
DOWN_STABILIZATION: Final = 300.0
MAX_UP_FACTOR: Final = 1.5
MAX_DOWN_FACTOR: Final = 0.75
TOLERANCE: Final = 0.05


class Cortex:
    """Requests in flight over a target, limited to x1.5 and x0.75, stabilized both ways.

    Args:
        target: Requests in flight of one replica; Cortex's default is its max_concurrency.
    """

    def __init__(self, target: float) -> None:
        self._target = target
        self._in_flight = Trailing(WINDOW)
        self._recommended = Trailing(DOWN_STABILIZATION + 1)  # that of 300 s ago counts too
        self._started: float | None = None

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """Replicas every 10 s."""
        self._started = fleet.now if self._started is None else self._started
        self._in_flight.add(fleet.now, in_flight(fleet))
        if not due(fleet.now, TICK):
            return None
        current = len(fleet.pods)
        wished = recommendation(self._in_flight.mean() / self._target, current)
        wished = min(max(wished, fleet.min_replicas), fleet.max_replicas)
        self._recommended.add(fleet.now, wished)
        age = fleet.now - self._started
        if wished < current:
            return current if age < DOWN_STABILIZATION else self._floor(current)
        if wished > current:
            return current if age < UP_STABILIZATION else self._ceiling(wished, current)
        return current

    def _floor(self, current: int) -> int:
        return min(current, round(self._recommended.largest()))

    def _ceiling(self, wished: int, current: int) -> int:
        smallest = round(self._recommended.smallest(UP_STABILIZATION + 1))
        return min(wished, max(current, smallest))


def recommendation(raw: float, current: int) -> int:
    """Replicas before anything that looks at the past.

    Args:
        raw: Requests in flight over the target.
        current: Replicas now.
    """
    if current * (1 - TOLERANCE) < raw < current * (1 + TOLERANCE):
        return current
    lowest = min(current - 1, math.ceil(current * MAX_DOWN_FACTOR))  # one less is always allowed
    highest = max(current + 1, math.ceil(current * MAX_UP_FACTOR))  # and one more
    return min(max(math.ceil(raw), lowest), highest)
