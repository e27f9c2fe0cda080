"""Knative's pod autoscaler on concurrency, with the defaults of `config-autoscaler`.

Source: knative/serving `pkg/autoscaler/scaling/autoscaler.go` (`Scale`). Without the activator and
without a hard limit of concurrency in the queue proxy: neither has a counterpart in the fleet.
"""

import math
from typing import Final

from autoscaling.trailing import Trailing, due, in_flight
from batchedapi_core.simulation import SimulatedFleet

TICK: Final = 2
STABLE_WINDOW: Final = 60.0
PANIC_WINDOW: Final = 6.0
"""panic-window-percentage: 10."""
PANIC_THRESHOLD: Final = 2.0
"""panic-threshold-percentage: 200."""
MAX_UP_RATE: Final = 1000.0
MAX_DOWN_RATE: Final = 2.0


class KnativePodAutoscaler:
    """Averages over 60 s; when 6 s ask for twice the ready replicas, it panics and only goes up.

    Args:
        target: Requests in flight of one replica, target utilization already in it.
    """

    def __init__(self, target: float) -> None:
        self._target = target
        self._in_flight = Trailing(STABLE_WINDOW)
        self._panic_since: float | None = None
        self._most_in_panic = 0
        self._started = False

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """Replicas every 2 s."""
        ready = sum(pod.ready for pod in fleet.pods)
        if not self._started:
            self._start(fleet.now, ready)
        self._in_flight.add(fleet.now, in_flight(fleet))
        if not due(fleet.now, TICK):
            return None
        wished = self._in_flight.mean() / self._target
        wished_now = self._in_flight.mean(PANIC_WINDOW) / self._target
        self._turn(fleet.now, over=math.ceil(wished_now) / max(1, ready) >= PANIC_THRESHOLD)
        if self._panic_since is None:
            return max(1, _limited(wished, ready))
        self._most_in_panic = max(
            self._most_in_panic, _limited(wished, ready), _limited(wished_now, ready)
        )
        return max(1, self._most_in_panic)

    def _start(self, now: float, ready: int) -> None:
        """`newAutoscaler`: with more than one pod it starts in panic, to go down on no evidence."""
        self._started = True
        if ready > 1:
            self._panic_since = now
            self._most_in_panic = ready

    def _turn(self, now: float, *, over: bool) -> None:
        """Panic lasts until 60 s after the last time over the threshold."""
        if over:
            self._panic_since = now
        elif self._panic_since is not None and self._panic_since + STABLE_WINDOW < now:
            self._panic_since = None
            self._most_in_panic = 0


def _limited(wished: float, ready: int) -> int:
    pods = max(1, ready)
    lowest, highest = math.floor(pods / MAX_DOWN_RATE), math.ceil(MAX_UP_RATE * pods)
    return min(max(math.ceil(wished), lowest), highest)
