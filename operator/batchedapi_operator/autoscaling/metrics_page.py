"""A replica's Prometheus page as a sample for the autoscaler. Pure, and suspicious.

A pod runs its user's code, so its page may say anything. A page that is too large, not parseable,
incomplete or impossible is as good as none: the pod then counts as not seen, never as idle.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from batchedapi_core import contract
from batchedapi_core.scaling import PodSample
from batchedapi_operator.errors import MetricsUnavailableError

MAX_BYTES: Final = 2**20
MAX_SERIES: Final = 5000
"""Of the metrics that are read; a replica with one method has 150 in all."""
MAX_LINE: Final = 1000
_HISTOGRAMS: Final = (contract.METRIC_BATCH_ROWS, contract.METRIC_BATCH_SECONDS)
_READ: Final = frozenset(
    {
        contract.METRIC_BATCHES,
        contract.METRIC_ROWS_RECEIVED,
        contract.METRIC_ROWS_REJECTED,
        contract.METRIC_BATCH_SIZE,
        contract.METRIC_BATCH_ROWS_SQUARED,
        contract.METRIC_BATCH_ROW_SECONDS,
        contract.METRIC_QUEUE_ROWS,
        contract.METRIC_LANES,
        contract.METRIC_MAX_BATCH_SIZE,
        contract.METRIC_BATCH_INTERVAL_SECONDS,
        contract.METRIC_PROCESS_START_TIME,
        contract.METRIC_MODEL_PROCESS_MEMORY_BYTES,
        f"{contract.METRIC_BATCH_ROWS}_bucket",
        f"{contract.METRIC_BATCH_REQUESTS}_sum",
        *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("sum", "count")),
    }
)
_PARSER_ERRORS: Final = (ValueError, IndexError, KeyError, TypeError, AttributeError)
"""What the parser is known to raise on text that is no exposition."""

Edges = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """What one page says."""

    sample: PodSample
    max_batch_size: int | None
    """In effect, in rows, requests or cost; the largest of the methods'. None: not exported."""
    batch_interval: float | None
    """Seconds, in effect; the longest of the methods'."""
    process_memory: float | None = None
    """Bytes of the largest model process."""
    requests: float = 0.0
    """In batches, since the start of the process."""


@dataclass(frozen=True, slots=True)
class _Series:
    """Values by sample name, one for each series."""

    values: dict[str, list[Sample]]

    def on_lanes(self) -> "_Series":
        """Without methods that run as many calls at once as requests are let in.

        Such a call, of an async method without batching, occupies no lane: it waits, often for
        rows that it submits to other methods, and those count there. Its seconds would look like
        slow batches and its rows like more demand. Where a replica has no other methods, they stay.
        """
        told = self.values.get(contract.METRIC_LANES, ())
        lanes = {one.labels.get("method"): one.value for one in told}
        fewest = min(lanes.values(), default=0.0)
        calls = {method for method, count in lanes.items() if count > fewest}
        if len(lanes) > 1 and fewest <= 0:
            # which are calls cannot be told now, and what is counted must not change
            raise MetricsUnavailableError("incomplete", f"{contract.METRIC_LANES}: none has joined")
        return _Series(
            {
                name: [one for one in samples if one.labels.get("method") not in calls]
                for name, samples in self.values.items()
            }
        )

    def required(self, name: str) -> float:
        if not self.values.get(name):
            raise MetricsUnavailableError("incomplete", f"expected {name}, which is not exported")
        return sum(sample.value for sample in self.values[name])

    def shared(self, name: str) -> float:
        """Of what all methods have together, and each says whole."""
        self.required(name)
        return max(sample.value for sample in self.values[name])

    def optional(self, name: str) -> float:
        return sum(sample.value for sample in self.values.get(name, ()))

    def largest(self, name: str) -> float | None:
        return max((sample.value for sample in self.values.get(name, ())), default=None)

    def full_batches(self) -> float:
        self.required(contract.METRIC_BATCHES)
        batches = self.values[contract.METRIC_BATCHES]
        return sum(one.value for one in batches if one.labels.get("reason") == "full")


def parse_page(text: str, pod: str, *, time: float, unix_time: float) -> MetricsPage:
    """Read one page.

    Args:
        text: As it came from the pod.
        pod: Its uid.
        time: Of the scrape, monotonic seconds.
        unix_time: Of the scrape, wall clock; only compared with the start of the process.

    Raises:
        MetricsUnavailableError: The page is not one that could be true.
    """
    series = _read(text).on_lanes()
    start = series.required(contract.METRIC_PROCESS_START_TIME)
    sample = PodSample(
        pod=pod,
        time=time,
        process_start=start,
        uptime=max(0.0, unix_time - start),
        rows_received=series.required(contract.METRIC_ROWS_RECEIVED),
        rows_rejected=series.optional(contract.METRIC_ROWS_REJECTED),
        batches=series.required(f"{contract.METRIC_BATCH_ROWS}_count"),
        rows=series.required(f"{contract.METRIC_BATCH_ROWS}_sum"),
        full_batches=series.full_batches(),
        batch_seconds=series.required(f"{contract.METRIC_BATCH_SECONDS}_sum"),
        rows_squared=series.optional(contract.METRIC_BATCH_ROWS_SQUARED),
        row_seconds=series.optional(contract.METRIC_BATCH_ROW_SECONDS),
        batch_rows_buckets=_buckets(series.values.get(f"{contract.METRIC_BATCH_ROWS}_bucket", ())),
        queue_rows=series.required(contract.METRIC_QUEUE_ROWS),
        lanes=series.shared(contract.METRIC_LANES),
        sizes=series.optional(contract.METRIC_BATCH_SIZE),
    )
    size = series.largest(contract.METRIC_MAX_BATCH_SIZE)
    if size is not None and not 1 <= size <= contract.MAX_BATCH_SIZE_LIMIT:
        raise MetricsUnavailableError("invalid", f"{contract.METRIC_MAX_BATCH_SIZE}: {size}")
    return MetricsPage(
        sample=sample,
        max_batch_size=None if size is None else int(size),
        batch_interval=series.largest(contract.METRIC_BATCH_INTERVAL_SECONDS),
        process_memory=series.largest(contract.METRIC_MODEL_PROCESS_MEMORY_BYTES),
        requests=series.optional(f"{contract.METRIC_BATCH_REQUESTS}_sum"),
    )


def _read(text: str) -> _Series:
    if len(text) > MAX_BYTES:
        raise MetricsUnavailableError("too_large", f"more than {MAX_BYTES} bytes")
    lines = list(_lines_of_interest(text))
    if len(lines) > MAX_SERIES:
        raise MetricsUnavailableError("too_large", f"more than {MAX_SERIES} series")
    values: defaultdict[str, list[Sample]] = defaultdict(list)
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                _check(sample, seen)
                values[sample.name].append(sample)
    except _PARSER_ERRORS as error:
        raise MetricsUnavailableError("malformed", f"not an exposition: {error!r:.200}") from error
    return _Series(dict(values))


def _lines_of_interest(text: str) -> Iterator[str]:
    """Lines of the metrics that are read; the others are not worth the parser's time."""
    for line in text.split("\n"):
        name = line.partition("{")[0].partition(" ")[0]
        if name in _READ:
            if len(line) > MAX_LINE:
                raise MetricsUnavailableError("too_large", f"{name}: a line over {MAX_LINE} long")
            yield line


def _check(sample: Sample, seen: set[tuple[str, tuple[tuple[str, str], ...]]]) -> None:
    if not (math.isfinite(sample.value) and sample.value >= 0.0):
        raise MetricsUnavailableError("invalid", f"{sample.name}: {sample.value}")
    identity = (sample.name, tuple(sorted(sample.labels.items())))
    if identity in seen:
        raise MetricsUnavailableError("invalid", f"{sample.name}: the same series twice")
    seen.add(identity)


def _buckets(samples: Iterable[Sample]) -> Edges:
    """Cumulative (upper edge, batches) over all methods, whose edges may differ.

    Adding cumulative counts would be wrong where one method has an edge that another has not, so
    each bucket is taken alone first.
    """
    by_method: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        try:
            edge = float(sample.labels["le"])
        except (KeyError, ValueError) as error:
            raise MetricsUnavailableError(
                "invalid", f"a bucket without an edge: {error}"
            ) from error
        if math.isnan(edge):
            raise MetricsUnavailableError("invalid", "a bucket with edge NaN")
        by_method[sample.labels.get("method", "")].append((edge, sample.value))
    alone: defaultdict[float, float] = defaultdict(float)
    for buckets in by_method.values():
        below = 0.0
        for edge, count in sorted(buckets):
            if count < below:
                raise MetricsUnavailableError("invalid", f"bucket le={edge}: fewer than below it")
            alone[edge] += count - below
            below = count
    return _cumulative(alone)


def _cumulative(alone: dict[float, float]) -> Edges:
    total = 0.0
    edges = []
    for edge, count in sorted(alone.items()):
        total += count
        edges.append((edge, total))
    return tuple(edges)
