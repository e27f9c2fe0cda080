"""The operator's own metrics; names in contract.py."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from batchedapi_core import contract
from batchedapi_operator.keys import ObjectKey

_OBJECT: Final = ("namespace", "name")
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """All of them, in a registry of their own. Written by the queue and the autoscaler."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._desired = self._gauge(contract.OPERATOR_DESIRED_REPLICAS, "Replicas decided on.")
        self._ready = self._gauge(contract.OPERATOR_READY_REPLICAS, "Pods that are ready.")
        self._demand = self._gauge(contract.OPERATOR_DEMAND, "Rows/s arriving, planned for.")
        self._capacity = self._gauge(
            contract.OPERATOR_CAPACITY, "Rows/s of one replica within the latency target."
        )
        self._decisions = Counter(
            contract.OPERATOR_DECISIONS, "Scaling decisions.", (*_OBJECT, "reason"),
            registry=self.registry,
        )  # fmt: skip
        self._scrapes = Counter(
            contract.OPERATOR_SCRAPES, "Scrapes of pods.", (*_OBJECT, "result"),
            registry=self.registry,
        )  # fmt: skip
        self._reconciles = Counter(
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
        self._scrapes.labels(key.namespace, key.name, result).inc()

    def decided(
        self, key: ObjectKey, reason: str, *, desired: int, ready: int, base: float, capacity: float
    ) -> None:
        """One decision; rates in rows/s."""
        place = (key.namespace, key.name)
        self._decisions.labels(*place, reason).inc()
        self._desired.labels(*place).set(desired)
        self._ready.labels(*place).set(ready)
        self._demand.labels(*place).set(base)
        self._capacity.labels(*place).set(capacity)

    def forget(self, key: ObjectKey) -> None:
        """Drop the series of an API that is gone or no longer scaled by us."""
        place = {"namespace": key.namespace, "name": key.name}
        for gauge in (self._desired, self._ready, self._demand, self._capacity):
            gauge.remove_by_labels(place)
        self._decisions.remove_by_labels(place)
        self._scrapes.remove_by_labels(place)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, _OBJECT, registry=self.registry)
