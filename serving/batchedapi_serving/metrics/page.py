"""The metrics memory as a Prometheus page; read by the supervisor, whatever the others do."""

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from batchedapi_core import contract
from batchedapi_serving.metrics import slots
from batchedapi_serving.settings import Role

log = logging.getLogger(__name__)

_Named: TypeAlias = tuple[tuple[str, int, str], ...]
"""Name, slot and help text of families with one number for each method."""
_GAUGES: Final = (
    (contract.METRIC_QUEUE_ROWS, slots.QUEUE_ROWS, "Rows waiting in the queue."),
    (contract.METRIC_IN_FLIGHT_REQUESTS, slots.IN_FLIGHT, "Requests not yet answered."),
    (contract.METRIC_LANES, slots.LANES, "Batches that can run at once."),
    (contract.METRIC_MAX_BATCH_SIZE, slots.MAX_BATCH_SIZE, "Size of a full batch, in effect."),
    (contract.METRIC_BATCH_INTERVAL_SECONDS, slots.BATCH_INTERVAL, "batchInterval in effect."),
    (contract.METRIC_ONE_BY_ONE, slots.ONE_BY_ONE, "Whether batches are run request by request."),
)
_QUEUE_GAUGES: Final = (
    (
        contract.METRIC_QUEUE_OLDEST_SECONDS,
        slots.QUEUE_OLDEST,
        "Seconds that the oldest row waits.",
    ),
)
"""Gauges of a web process whose queue is that of all replicas."""
_WORKER_COUNTERS: Final = (
    (contract.METRIC_ROWS_RETAKEN, slots.ROWS_RETAKEN, "Rows that a worker had which died."),
)
_COUNTERS: Final = (
    (contract.METRIC_ROWS_RECEIVED, slots.ROWS_RECEIVED, "Rows received, rejected ones too."),
    (
        contract.METRIC_REQUEST_ROWS_SQUARED,
        slots.REQUEST_SQUARES,
        "Sum of rows^2 over requests received.",
    ),
    (contract.METRIC_BATCH_SIZE, slots.BATCH_SIZE, "Sizes of batches, as maxBatchSize counts."),
    (contract.METRIC_BATCH_LENGTHS, slots.LENGTHS, "Lengths of rows in batches."),
    (
        contract.METRIC_BATCH_PADDED_LENGTHS,
        slots.PADDED_LENGTHS,
        "The same, padded to the longest.",
    ),
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
    (contract.METRIC_SERVICE_TIME, "term", contract.SERVICE_TIME_TERMS, slots.SERVICE_TIME,
     "Learned: n rows of length L take batch + n * (row + L * length)."),
    (contract.METRIC_BATCHES, "reason", contract.RELEASE_REASONS, slots.BATCHES,
     "Batches by the reason of their release."),
    (contract.METRIC_REQUESTS, "code", contract.STATUS_CODES, slots.REQUESTS,
     "Requests by HTTP status; 499 left before the answer."),
    (contract.METRIC_ROWS_REJECTED, "reason", contract.REJECTION_REASONS, slots.REJECTED,
     "Rows that were not run, or not in time."),
)  # fmt: skip


_TOLD: Final = (*contract.FAILED_CODES, *contract.REFUSED_CODES)


class Part(NamedTuple):
    """The part of a replica that a page is of."""

    role: str = Role.REPLICA.value
    shared_queue: bool = False
    """Whether requests wait in one queue for all replicas."""


_WHOLE: Final = Part()


def whole_page(
    memory: slots.Memory,
    methods: Sequence[tuple[str, int]],
    predictors: Sequence[Metric] = (),
    dropped: float = 0.0,
    part: Part = _WHOLE,
) -> bytes:
    """The exposition text of everything in `memory`, and behind it of the predictor's own metrics.

    `methods` are names and configured batch sizes, from which the edges of the histograms follow,
    in the order of their blocks. Before they are known there are none, and little to say. `dropped`
    are updates of the predictor's metrics for which there was no room.
    """
    updates = CounterMetricFamily(
        contract.METRIC_PREDICTOR_UPDATES_DROPPED,
        "Updates of the predictor's own metrics beyond the limit on series.",
        dropped,
    )
    ours = [*_families(memory, methods, part), updates]
    try:
        return generate_latest(_Page([*ours, *predictors]))
    except Exception:  # noqa: BLE001 - names and texts are the predictor's, and may be anything
        return generate_latest(_Page(ours)) + b"".join(map(_text_of, predictors))


def _text_of(family: Metric) -> bytes:
    """One family's text; nothing if it cannot be written, which the log says once."""
    try:
        return generate_latest(_Page([family]))
    except Exception as error:  # noqa: BLE001 - see whole_page
        _tell(repr(family.name), type(error).__name__)
        return b""


@functools.lru_cache(maxsize=100)  # as many as a predictor may have
def _tell(family: str, error: str) -> None:
    log.warning("a predictor's metric cannot be written", extra={"metric": family, "error": error})


def scaling_page(
    memory: slots.Memory, methods: Sequence[tuple[str, int]], part: Part = _WHOLE
) -> bytes:
    """Only `contract.SCALING_SERIES`, without comments, and requests without most of their codes.

    At most `contract.SCALING_PAGE_BYTES` and so many a method.
    """
    values: dict[tuple[str, str], float] = {}
    for family in _families(memory, methods, part):
        for sample in family.samples:
            if sample.name not in contract.SCALING_SERIES:
                continue
            labels = ",".join(
                f'{name}="{value}"'
                for name, value in sample.labels.items()
                if (sample.name, name) != (contract.METRIC_REQUESTS, "code") or value in _TOLD
            )
            series = (sample.name, labels)
            values[series] = values.get(series, 0.0) + sample.value
    return "".join(
        f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
        for (name, labels), value in values.items()
    ).encode()


class _Method(NamedTuple):
    """A method's figures, copied."""

    name: str
    max_batch_size: int
    values: Sequence[float]


def _families(
    memory: slots.Memory, methods: Sequence[tuple[str, int]], part: Part
) -> Iterator[Metric]:
    """Everything in `memory`, one family after the other, in a fixed order."""
    yield from _of_replica(memory[: slots.REPLICA_SLOTS].tolist(), part)
    figures = [
        _Method(name, size, slots.method_block(memory, index).tolist())
        for index, (name, size) in enumerate(methods)
    ]
    if figures:  # before that, the sizes of the histograms are not known
        yield from _gauges_and_counters(figures, shared=part.shared_queue)
        yield from _histograms(figures)


def _of_replica(values: Sequence[float], part: Part) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        contract.METRIC_PROCESS_START_TIME,
        "Unix time at which the replica started.",
        values[slots.START_TIME],
    )
    role = GaugeMetricFamily(
        contract.METRIC_ROLE, "Which part of a replica this is.", labels=("role",)
    )
    role.add_metric((part.role,), 1.0)
    yield role
    restarts = CounterMetricFamily(
        contract.METRIC_PROCESS_RESTARTS, "Processes replaced.", labels=("role",)
    )
    restarts.add_metric(("web",), values[slots.WEB_RESTARTS])
    restarts.add_metric(("model",), values[slots.MODEL_RESTARTS])
    yield restarts
    yield _cpu_of_web(values)
    yield GaugeMetricFamily(
        contract.METRIC_MODEL_PROCESS_MEMORY_BYTES,
        "Resident memory of the largest model process.",
        values[slots.MODEL_MEMORY],
    )
    yield CounterMetricFamily(
        contract.METRIC_SPANS_DROPPED,
        "Spans that were not sent to the collector of traces.",
        sum(values[slots.SPANS_DROPPED :][: contract.MAX_WEB_PROCESSES + 1]),
    )
    yield CounterMetricFamily(
        contract.METRIC_PROCESS_CPU_SECONDS,
        "CPU seconds of all processes of the pod.",
        values[slots.PROCESS_CPU],
    )
    if part.shared_queue:
        yield CounterMetricFamily(
            contract.METRIC_QUEUE_UNREADABLE,
            "What others wrote to the queue, and could not be read.",
            sum(values[slots.QUEUE_UNREADABLE :][:2]),
        )


def _cpu_of_web(values: Sequence[float]) -> Metric:
    cpu = CounterMetricFamily(
        contract.METRIC_WEB_CPU_SECONDS, "CPU seconds of a web process.", labels=("process",)
    )
    for index in range(contract.MAX_WEB_PROCESSES):
        value = values[slots.WEB_CPU + index]
        if index == 0 or value > 0.0:  # those that ever ran, and so that the family is there
            cpu.add_metric((str(index),), value)
    return cpu


def _gauges_and_counters(methods: Sequence[_Method], *, shared: bool) -> Iterator[Metric]:
    kinds: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], _Named], ...] = (
        (GaugeMetricFamily, (*_GAUGES, *(_QUEUE_GAUGES if shared else ()))),
        (CounterMetricFamily, (*_COUNTERS, *(_WORKER_COUNTERS if shared else ()))),
    )
    for kind, named in kinds:
        for name, slot, text in named:
            family = kind(name, text, labels=("method",))
            for method in methods:
                family.add_metric((method.name,), method.values[slot])
            yield family
    for name, label, members, first, text in _LABELED:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        labeled = kind(name, text, labels=("method", label))
        for method in methods:
            for i, member in enumerate(members):
                labeled.add_metric((method.name, str(member)), method.values[first + i])
        yield labeled


def _histograms(methods: Sequence[_Method]) -> Iterator[Metric]:
    for table, sum_slot in ((_SIZES, slots.SIZE_SUM), (_LATENCIES, slots.LATENCY_SUM)):
        for name, first, text in table:
            family = HistogramMetricFamily(name, text, labels=("method",))
            for method, size, values in methods:
                edges: Sequence[float] = contract.LATENCY_BUCKETS
                if table is _SIZES:
                    edges = contract.batch_size_buckets(size)
                labels = [*(f"{edge:g}" for edge in edges), "+Inf"]
                counts = itertools.accumulate(values[first:][: len(labels)])
                buckets = list(zip(labels, counts, strict=True))
                family.add_metric((method,), buckets=buckets, sum_value=values[first + sum_slot])
            yield family


class _Page(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
