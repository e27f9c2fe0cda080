"""The HorizontalPodAutoscaler of Kubernetes, with its default behaviour; KEDA drives it too.

Source: kubernetes `pkg/controller/podautoscaler/horizontal.go` (loop, stabilization, scale-up
limit) and `replica_calculator.go` (replicas of a metric). No delay of a metrics pipeline is added
to the 30 s that its rates span, which is in its favour.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from autoscaling.trailing import Trailing, due, in_flight
from batchedapi_core.simulation import SimulatedFleet, SimulatedPod

SYNC: Final = 15
"""Seconds between decisions: --horizontal-pod-autoscaler-sync-period."""
TOLERANCE: Final = 0.1
"""Tolerance of the ratio of metric and target: --horizontal-pod-autoscaler-tolerance."""
DOWN_STABILIZATION: Final = 300.0
"""--horizontal-pod-autoscaler-downscale-stabilization."""
UP_FACTOR: Final = 2
UP_PODS: Final = 4
"""Scaling up, a sync period at most doubles the replicas or adds four, whichever is more."""
METRIC_WINDOW: Final = 30.0
"""Seconds that a rate or a mean spans: two scrapes of 15 s."""
METRIC_RESOLUTION: Final = 15.0
"""A pod ready for less has no metric that is wholly from its ready time: it counts as unready."""
_ROUNDING: Final = 1e-9

PodValue = Callable[[float, SimulatedPod, SimulatedPod], float]
"""A pod's metric from the seconds between two looks and the pod at both."""


class Metric(Protocol):
    """The replicas that the HPA asks for, before its own limits."""

    def observe(self, fleet: SimulatedFleet) -> None:
        """Called once a second."""

    def replicas(self, fleet: SimulatedFleet) -> int | None:
        """Called when a decision is due; None: there is no metric, leave the replicas."""


class HorizontalPodAutoscaler:
    """Up at once within the scale-up limit; down to the most recommended in the last 300 s."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._recommended = Trailing(DOWN_STABILIZATION + 1)  # that of 300 s ago counts too

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """`reconcileAutoscaler`: the metric's replicas, stabilized, then limited."""
        self._metric.observe(fleet)
        if not due(fleet.now, SYNC):
            return None
        current = len(fleet.pods)
        wished = self._metric.replicas(fleet)
        if wished is None:
            return None
        self._recommended.add(fleet.now, wished)
        if wished < current:
            return min(current, round(self._recommended.largest()))
        return min(wished, max(UP_FACTOR * current, current + UP_PODS))


class MeanOfPods:
    """A metric of each pod, with the mean of all held at a target (types Resource and Pods)."""

    def __init__(self, target: float, value: PodValue) -> None:
        self._target = target
        self._value = value
        self._seen: dict[str, deque[tuple[float, SimulatedPod]]] = {}

    def observe(self, fleet: SimulatedFleet) -> None:
        """Keep the counters of the ready pods for one metric window."""
        self._seen = {
            pod.name: self._seen.get(pod.name, deque()) for pod in fleet.pods if pod.ready
        }
        for pod in fleet.pods:
            if pod.ready:
                looks = self._seen[pod.name]
                looks.append((fleet.now, pod))
                while looks[0][0] < fleet.now - METRIC_WINDOW:
                    looks.popleft()

    def replicas(self, fleet: SimulatedFleet) -> int | None:
        """`calcPlainMetricReplicas`: on the way up an unready pod counts as idle, else not."""
        current = len(fleet.pods)
        values = [value for pod in fleet.pods if (value := self._of(pod, fleet.now)) is not None]
        if not values:
            return None
        ratio = sum(values) / len(values) / self._target
        unready = current - len(values)
        if not unready or ratio <= 1.0:
            if abs(1.0 - ratio) <= TOLERANCE:
                return current
            return max(1, math.ceil(ratio * len(values) - _ROUNDING))
        with_idle = sum(values) / current / self._target
        if with_idle <= 1.0 + TOLERANCE:  # within it, or the other way than without them
            return current
        return max(current, math.ceil(with_idle * current - _ROUNDING))

    def _of(self, pod: SimulatedPod, now: float) -> float | None:
        if not pod.ready or now - pod.ready_at < METRIC_RESOLUTION:
            return None
        (began, before), (ended, after) = self._seen[pod.name][0], self._seen[pod.name][-1]
        return self._value(ended - began, before, after) if ended > began else None


class TotalOverPods:
    """A total, shared by the pods at a target each (type External, AverageValue; all of KEDA's).

    Args:
        target: What one replica is to have.
        total: The fleet's total at one moment; the metric is its mean over 30 s.
    """

    def __init__(self, target: float, total: Callable[[SimulatedFleet], float]) -> None:
        self._target = target
        self._total = total
        self._seen = Trailing(METRIC_WINDOW)

    def observe(self, fleet: SimulatedFleet) -> None:
        """Keep the total for one metric window."""
        self._seen.add(fleet.now, self._total(fleet))

    def replicas(self, fleet: SimulatedFleet) -> int | None:
        """`GetExternalPerPodMetricReplicas`."""
        return _per_pod(self._seen.mean(), self._target, len(fleet.pods))


class ArrivalsOverPods:
    """Arrived rows/s at a target each: KEDA on the rate of a counter, summed over pods."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._arrived = 0.0
        self._received: dict[str, float] = {}
        self._seen = Trailing(METRIC_WINDOW)

    def observe(self, fleet: SimulatedFleet) -> None:
        """Add what each pod received since the last look, as `rate()` does for each series."""
        self._arrived += sum(
            max(0.0, pod.counters.received - self._received.get(pod.name, 0.0))
            for pod in fleet.pods
        )
        self._received = {pod.name: pod.counters.received for pod in fleet.pods}
        self._seen.add(fleet.now, self._arrived)

    def replicas(self, fleet: SimulatedFleet) -> int | None:
        """`GetExternalPerPodMetricReplicas`."""
        rate = self._seen.slope()
        return None if rate is None else _per_pod(rate, self._target, len(fleet.pods))


def _per_pod(total: float, target: float, current: int) -> int:
    if abs(1.0 - total / (target * current)) <= TOLERANCE:
        return current
    return max(1, math.ceil(total / target - _ROUNDING))


def on_busy(target: float) -> HorizontalPodAutoscaler:
    """On the share of time in which a batch runs: the best case of a CPU or GPU metric."""

    def busy(seconds: float, before: SimulatedPod, after: SimulatedPod) -> float:
        return min(1.0, (after.counters.batch_seconds - before.counters.batch_seconds) / seconds)

    return HorizontalPodAutoscaler(MeanOfPods(target, busy))


def on_fill(target: float, max_batch_size: int) -> HorizontalPodAutoscaler:
    """On the mean batch over the largest allowed: the naive use of a batch-size histogram."""

    def fill(_: float, before: SimulatedPod, after: SimulatedPod) -> float:
        new, old = after.counters, before.counters
        batches = new.batches - old.batches
        return (new.rows - old.rows) / batches / max_batch_size if batches else 0.0

    return HorizontalPodAutoscaler(MeanOfPods(target, fill))


def on_in_flight(target: float) -> HorizontalPodAutoscaler:
    """On the requests in flight of each replica: KEDA's or a Prometheus adapter's usual choice."""
    return HorizontalPodAutoscaler(TotalOverPods(target, in_flight))


def on_arrivals(target: float) -> HorizontalPodAutoscaler:
    """On arrived rows/s of each replica: KEDA, the target found by a load test."""
    return HorizontalPodAutoscaler(ArrivalsOverPods(target))
