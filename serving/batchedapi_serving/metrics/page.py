"""The metrics memory as a Prometheus page; read by the supervisor, whatever the others do."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from batchedapi_core import contract
from batchedapi_serving.metrics import slots

METHOD: Final = "predict"

_GAUGES: Final = (
    (contract.METRIC_QUEUE_ROWS, slots.QUEUE_ROWS, "Rows waiting in the queue."),
    (contract.METRIC_IN_FLIGHT_REQUESTS, slots.IN_FLIGHT, "Requests not yet answered."),
    (contract.METRIC_LANES, slots.LANES, "Batches that can run at once."),
    (contract.METRIC_MAX_BATCH_SIZE, slots.MAX_BATCH_SIZE, "Size of a full batch, in effect."),
    (contract.METRIC_BATCH_INTERVAL_SECONDS, slots.BATCH_INTERVAL, "batchInterval in effect."),
)
_COUNTERS: Final = (
    (contract.METRIC_ROWS_RECEIVED, slots.ROWS_RECEIVED, "Rows received, rejected ones too."),
    (contract.METRIC_BATCH_ROWS_SQUARED, slots.ROWS_SQUARED, "Sum of rows^2 over batches."),
    (contract.METRIC_BATCH_ROW_SECONDS, slots.ROW_SECONDS, "Sum of rows * seconds over batches."),
    (contract.METRIC_LANE_BUSY_SECONDS, slots.LANE_BUSY, "Seconds that lanes ran batches."),
)
_LATENCIES: Final = (
    (contract.METRIC_BATCH_SECONDS, slots.BATCH_SECONDS, "Seconds a lane was busy with a batch."),
    (contract.METRIC_QUEUE_WAIT_SECONDS, slots.QUEUE_WAIT, "Seconds from arrival to dispatch."),
    (contract.METRIC_REQUEST_SECONDS, slots.REQUEST_SECONDS, "Seconds from request to answer."),
)
_SIZES: Final = (
    (contract.METRIC_BATCH_ROWS, slots.BATCH_ROWS, "Rows of a batch."),
    (contract.METRIC_BATCH_REQUESTS, slots.BATCH_REQUESTS, "Requests of a batch."),
)
_LABELED: Final = (
    (contract.METRIC_BATCHES, "reason", contract.RELEASE_REASONS, slots.BATCHES,
     "Batches by the reason of their release."),
    (contract.METRIC_REQUESTS, "code", contract.STATUS_CODES, slots.REQUESTS,
     "Requests by HTTP status; 499 left before the answer."),
    (contract.METRIC_ROWS_REJECTED, "reason", contract.REJECTION_REASONS, slots.REJECTED,
     "Rows that were not run, or not in time."),
)  # fmt: skip


def page(memory: slots.Memory) -> bytes:
    """The exposition text of everything in `memory`."""
    registry = CollectorRegistry()
    registry.register(_MemoryCollector(memory.tolist()))
    return generate_latest(registry)


class _MemoryCollector(Collector):
    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        """One family after the other, in a fixed order."""
        values = self._values
        start = GaugeMetricFamily(
            contract.METRIC_PROCESS_START_TIME, "Unix time at which the replica started."
        )
        start.add_metric((), values[slots.START_TIME])
        yield start
        restarts = CounterMetricFamily(
            contract.METRIC_PROCESS_RESTARTS, "Processes replaced.", labels=("role",)
        )
        restarts.add_metric(("web",), values[slots.WEB_RESTARTS])
        restarts.add_metric(("model",), values[slots.MODEL_RESTARTS])
        yield restarts
        if values[slots.READY]:  # before that, the sizes of the histograms are not known
            yield from self._of_the_method()

    def _of_the_method(self) -> Iterator[Metric]:
        values = self._values
        for name, slot, text in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("method",))
            gauge.add_metric((METHOD,), values[slot])
            yield gauge
        for name, slot, text in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("method",))
            counter.add_metric((METHOD,), values[slot])
            yield counter
        for name, label, members, first, text in _LABELED:
            counter = CounterMetricFamily(name, text, labels=("method", label))
            for i, member in enumerate(members):
                counter.add_metric((METHOD, str(member)), values[first + i])
            yield counter
        size_edges = contract.batch_size_buckets(int(values[slots.MAX_BATCH_SIZE]))
        for name, first, text in _SIZES:
            yield self._histogram(name, text, size_edges, first, first + slots.SIZE_SUM)
        for name, first, text in _LATENCIES:
            edges = contract.LATENCY_BUCKETS
            yield self._histogram(name, text, edges, first, first + slots.LATENCY_SUM)

    def _histogram(
        self, name: str, text: str, edges: Sequence[float], first: int, sum_slot: int
    ) -> Metric:
        counts = self._values[first : first + len(edges) + 1]
        labels = [*(f"{edge:g}" for edge in edges), "+Inf"]
        family = HistogramMetricFamily(name, text, labels=("method",))
        family.add_metric(
            (METHOD,),
            buckets=list(zip(labels, itertools.accumulate(counts), strict=True)),
            sum_value=self._values[sum_slot],
        )
        return family
