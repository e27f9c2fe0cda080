"""Averages over time, as the autoscalers of others take them."""

from collections import deque

from batchedapi_core.simulation import SimulatedFleet


def due(now: float, period: int) -> bool:
    """Whether a loop of this period, in whole seconds, runs at this simulated second."""
    return round(now) % period == 0


def in_flight(fleet: SimulatedFleet) -> float:
    """Requests queued or running in all live replicas."""
    return sum(pod.in_flight for pod in fleet.pods)


class Trailing:
    """The values of the last `seconds`, the present one included and the one that old not."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Keep this value and forget those that are too old."""
        self._values.append((now, value))
        while self._values[0][0] <= now - self._seconds:
            self._values.popleft()

    def mean(self, within: float | None = None) -> float:
        """Mean of the values of the last `within` seconds; None: of all kept. There must be one."""
        found = self._within(within)
        return sum(found) / len(found)

    def largest(self, within: float | None = None) -> float:
        """As `mean`, the largest."""
        return max(self._within(within))

    def smallest(self, within: float | None = None) -> float:
        """As `mean`, the smallest."""
        return min(self._within(within))

    def slope(self) -> float | None:
        """Rise per second from the oldest to the newest; None with fewer than two."""
        (began, first), (ended, last) = self._values[0], self._values[-1]
        return (last - first) / (ended - began) if ended > began else None

    def _within(self, seconds: float | None) -> list[float]:
        oldest = self._values[-1][0] - (self._seconds if seconds is None else seconds)
        return [value for time, value in self._values if time > oldest]
