"""Two pages of each replica as figures by method: batch sizes, queue, rates, latencies. Pure.

A pod runs its user's code, so its page may say anything; one that cannot be true counts as none.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from batchedapi_core import contract
from batchedapi_core.scaling.samples import LARGEST_COUNT
from batchedapi_operator.errors import MetricsUnavailableError

Values = Mapping[tuple[str, str], Mapping[str, float]]
"""By series and method, and then by what else tells one from others: its edge, reason or code."""
_FURTHER: Final = ("le", "reason", "code")


@dataclass(frozen=True, slots=True)
class Page:
    """Figures of a replica at one moment."""

    start: float
    """Unix time at which its counters began."""
    values: Values


@dataclass(frozen=True, slots=True)
class Reading:
    """Two pages of one replica."""

    before: Page
    after: Page
    seconds: float
    """Between them, > 0."""
    unix_time: float
    """Time of the second page."""


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """One method over all replicas that were read; rates are per second, times in seconds."""

    method: str
    max_batch_size: float
    """In the unit of maxBatchSize; the largest of the replicas'. 0: not said."""
    batch_interval: float
    queue_rows: float
    in_flight: float
    requests_per_second: float
    """Answered."""
    rows_received_per_second: float
    rows_per_second: float
    """Run, in batches."""
    batches_per_second: float
    mean_rows: float | None
    """Mean of a batch; None without one."""
    batches_by_rows: tuple[tuple[float, float], ...]
    """(most rows, batches with no more and more than the one before), in order."""
    released: Mapping[str, float]
    """Batches by reason; reasons without one are left out, here and below."""
    answered: Mapping[str, float]
    """Requests by status code."""
    rejected: Mapping[str, float]
    """Rows by reason."""
    mean_queue_wait: float | None
    mean_batch_seconds: float | None
    p50: float | None
    """From a complete request to its answer; None without one, infinite beyond the last edge."""
    p99: float | None
    padding: float | None = None
    """Share of padded lengths, 0..1; None: rows have none."""


@dataclass(frozen=True, slots=True)
class Window:
    """Counts, and the time over which they were made."""

    methods: tuple[MethodFigures, ...]
    seconds: float
    """Mean over the replicas; 0 without one."""
    since_start: bool
    """Nothing happened between the two pages, so all since the start of each replica counts."""


def parse_page(text: str) -> Page:
    """Read one page.

    Raises:
        MetricsUnavailableError: It is none, or says what cannot be true.
    """
    values: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                further = next((sample.labels[k] for k in _FURTHER if k in sample.labels), "")
                series = (sample.name, sample.labels.get("method", ""))
                if not 0.0 <= sample.value <= LARGEST_COUNT:
                    raise ValueError(f"a value of {sample.value}")  # noqa: TRY301 - as the parser
                values[series][further] = float(sample.value)
                if "le" in sample.labels and math.isnan(float(further)):
                    raise ValueError(f"{sample.name}: an edge that is NaN")  # noqa: TRY301 - as the parser
    except (ValueError, KeyError, IndexError) as error:  # what the parser says of no page
        raise MetricsUnavailableError("malformed", f"not a page of metrics: {error}") from error
    start = values[contract.METRIC_PROCESS_START_TIME, ""].get("")
    if start is None:
        name = contract.METRIC_PROCESS_START_TIME
        raise MetricsUnavailableError("incomplete", f"expected {name}, which is not there")
    return Page(start, values)


def figures_of(readings: Sequence[Reading]) -> Window:
    """All replicas together: of the time between the pages, or since the start if that was idle."""
    counted = [_PageCounts(one, _growth(one), one.seconds) for one in readings]
    idle = not any(
        one.total(*series) for one in counted for series in one.counts if series[0] in _HAPPENS
    )
    if idle:
        counted = [
            _PageCounts(one, one.after.values, max(1.0, one.unix_time - one.after.start))
            for one in readings
        ]
    queues = (series for one in readings for series in one.after.values)
    names = {method for series, method in queues if series == contract.METRIC_QUEUE_ROWS}
    seconds = [one.seconds for one in counted]
    return Window(
        methods=tuple(_method(name, counted) for name in sorted(names)[: contract.MAX_METHODS]),
        seconds=sum(seconds) / len(seconds) if seconds else 0.0,
        since_start=idle,
    )


_HAPPENS: Final = (
    f"{contract.METRIC_BATCH_ROWS}_count",
    contract.METRIC_REQUESTS,
    contract.METRIC_ROWS_RECEIVED,
)


def _growth(reading: Reading) -> Values:
    """Of the counters; those of a replica that began anew in between count from there."""
    before, after = reading.before, reading.after
    if before.start != after.start:
        return after.values
    return {
        series: {
            further: max(0.0, value - before.values.get(series, {}).get(further, 0.0))
            for further, value in values.items()
        }
        for series, values in after.values.items()
    }


@dataclass(frozen=True, slots=True)
class _PageCounts:
    """Counts of one replica within some seconds."""

    reading: Reading
    counts: Values
    seconds: float

    def by(self, name: str, method: str) -> Mapping[str, float]:
        return self.counts.get((name, method), {})

    def total(self, name: str, method: str) -> float:
        return sum(self.by(name, method).values())

    def gauge(self, name: str, method: str) -> float:
        return self.reading.after.values.get((name, method), {}).get("", 0.0)


def _method(method: str, counted: Sequence[_PageCounts]) -> MethodFigures:
    def total(name: str) -> float:
        return sum(one.total(name, method) for one in counted)

    def rate(name: str) -> float:
        return sum(one.total(name, method) / one.seconds for one in counted)

    def gauges(name: str) -> list[float]:
        return [one.gauge(name, method) for one in counted]

    def mean(name: str) -> float | None:
        count = total(f"{name}_count")
        return total(f"{name}_sum") / count if count else None

    def buckets(name: str) -> tuple[tuple[float, float], ...]:
        return _alone(one.by(f"{name}_bucket", method) for one in counted)

    padded = total(contract.METRIC_BATCH_PADDED_LENGTHS)
    latencies = buckets(contract.METRIC_REQUEST_SECONDS)
    return MethodFigures(
        method="".join(c if c.isprintable() else "?" for c in method),
        max_batch_size=max(gauges(contract.METRIC_MAX_BATCH_SIZE)),
        batch_interval=max(gauges(contract.METRIC_BATCH_INTERVAL_SECONDS)),
        queue_rows=sum(gauges(contract.METRIC_QUEUE_ROWS)),
        in_flight=sum(gauges(contract.METRIC_IN_FLIGHT_REQUESTS)),
        requests_per_second=rate(contract.METRIC_REQUESTS),
        rows_received_per_second=rate(contract.METRIC_ROWS_RECEIVED),
        rows_per_second=rate(f"{contract.METRIC_BATCH_ROWS}_sum"),
        batches_per_second=rate(f"{contract.METRIC_BATCH_ROWS}_count"),
        mean_rows=mean(contract.METRIC_BATCH_ROWS),
        batches_by_rows=buckets(contract.METRIC_BATCH_ROWS),
        released=_by(contract.METRIC_BATCHES, method, counted),
        answered=_by(contract.METRIC_REQUESTS, method, counted),
        rejected=_by(contract.METRIC_ROWS_REJECTED, method, counted),
        mean_queue_wait=mean(contract.METRIC_QUEUE_WAIT_SECONDS),
        mean_batch_seconds=mean(contract.METRIC_BATCH_SECONDS),
        p50=quantile(latencies, 0.5),
        p99=quantile(latencies, 0.99),
        padding=1 - total(contract.METRIC_BATCH_LENGTHS) / padded if padded else None,
    )


def _by(name: str, method: str, counted: Sequence[_PageCounts]) -> dict[str, float]:
    """Sums by label, without those that are zero."""
    sums: defaultdict[str, float] = defaultdict(float)
    for one in counted:
        for label, value in one.by(name, method).items():
            sums[label] += value
    return {label: value for label, value in sums.items() if value}


def _alone(pages: Iterable[Mapping[str, float]]) -> tuple[tuple[float, float], ...]:
    """Each bucket without those below it.

    Replicas of two revisions may have other edges, so that their sums cannot be added as they are.
    """
    alone: defaultdict[float, float] = defaultdict(float)
    for page in pages:
        below = 0.0
        for edge, count in sorted((float(le), count) for le, count in page.items()):
            alone[edge] += max(0.0, count - below)
            below = count
    return tuple(sorted(alone.items()))


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """What `share` of all is not above, as Prometheus computes it: a bucket's are spread evenly.

    Args:
        buckets: (upper edge, how many in it), in order.
        share: 0..1.
    """
    everything = sum(count for _, count in buckets)
    if not everything:
        return None
    rank, low = share * everything, 0.0
    for edge, count in buckets:
        if count and rank <= count:
            return math.inf if math.isinf(edge) else low + (edge - low) * rank / count
        rank, low = rank - count, edge
    return buckets[-1][0]
