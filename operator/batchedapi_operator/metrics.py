"""The operator's own metrics; names in contract.py."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batchedapi_core import contract
from batchedapi_operator.cluster import ObjectKey

_OBJECT: Final = ("namespace", "name")
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Figures(NamedTuple):
    """Of the last decision about an API."""

    desired: float
    ready: float
    base: float
    capacity: float


_GAUGES: Final = (
    (contract.OPERATOR_DESIRED_REPLICAS, "Replicas decided on."),
    (contract.OPERATOR_READY_REPLICAS, "Pods that are ready."),
    (contract.OPERATOR_DEMAND, "Rows/s arriving, planned for."),
    (contract.OPERATOR_CAPACITY, "Rows/s of one replica within the latency target."),
)
"""In the order of `_Figures`."""


class Metrics(Collector):
    """All of them, in a registry of their own. Written by the queue and the autoscaler.

    Those of single APIs are numbers until somebody asks: a metric object for each series has 5 KiB
    an API.
    """

    def __init__(self, leads: Callable[[], bool] = lambda: True) -> None:
        self._leads = leads
        self.registry = CollectorRegistry()
        self._figures: dict[ObjectKey, _Figures] = {}
        self._decisions: Counter[tuple[ObjectKey, str]] = Counter()
        self._scrapes: Counter[tuple[ObjectKey, str]] = Counter()
        self.registry.register(self)
        self._reconciles = prometheus_client.Counter(
            contract.OPERATOR_RECONCILES, "Reconcile runs.", ("result",), registry=self.registry
        )
        self._seconds = Histogram(
            contract.OPERATOR_RECONCILE_SECONDS, "Seconds of a reconcile run.", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip

    def reconciled(self, result: str, seconds: float) -> None:
        """One run of the queue: `success` or `error`."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def scraped(self, key: ObjectKey, result: str) -> None:
        """One scrape of one pod."""
        self._scrapes[key, result] += 1

    def decided(
        self, key: ObjectKey, reason: str, *, desired: int, ready: int, base: float, capacity: float
    ) -> None:
        """One decision; rates in rows/s."""
        self._decisions[key, reason] += 1
        self._figures[key] = _Figures(desired, ready, base, capacity)

    def forget(self, key: ObjectKey) -> None:
        """Drop the series of an API that is gone or no longer scaled by us."""
        self._figures.pop(key, None)
        for counts in (self._decisions, self._scrapes):
            for one in [one for one in counts if one[0] == key]:
                del counts[one]

    def collect(self) -> Iterator[Metric]:
        """The series of all APIs, and whether this replica leads."""
        leader = "1 of the replica that acts, 0 of one that stands by or is refused."
        yield GaugeMetricFamily(contract.OPERATOR_LEADER, leader, value=float(self._leads()))
        for place, (name, text) in enumerate(_GAUGES):
            gauge = GaugeMetricFamily(name, text, labels=_OBJECT)
            for key, figures in self._figures.items():
                gauge.add_metric((key.namespace, key.name), figures[place])
            yield gauge
        for name, text, label, counts in (
            (contract.OPERATOR_DECISIONS, "Scaling decisions.", "reason", self._decisions),
            (contract.OPERATOR_SCRAPES, "Scrapes of pods.", "result", self._scrapes),
        ):
            counter = CounterMetricFamily(name, text, labels=(*_OBJECT, label))
            for (key, value), count in counts.items():
                counter.add_metric((key.namespace, key.name, value), count)
            yield counter
