"""A replica's Prometheus page as a sample for the autoscaler. Pure, and suspicious.

A pod runs its user's code, so its page may say anything. A page that is too large, not parseable,
incomplete or impossible is as good as none: the pod then counts as not seen, never as idle.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchedapi_core import contract
from batchedapi_core.scaling import PodSample
from batchedapi_operator.autoscaling.exposition import Layout, Points, Series, read
from batchedapi_operator.errors import MetricsUnavailableError

MAX_LANES: Final = 65536
"""64 processes of 1024 threads; calls of an async method are let in up to 30000 at once."""
MAX_BATCH_INTERVAL: Final = 3600.0
"""Seconds; a manifest can say a minute."""
MAX_PROCESS_MEMORY: Final = 2.0**50

Edges = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters since the start of the process that no decision needs, but an explanation does."""

    released: tuple[float, ...]
    """Batches by the reason of their release, in the order of contract.RELEASE_REASONS."""
    rejected: tuple[float, ...]
    """Rows by the reason of their rejection, in the order of contract.REJECTION_REASONS."""
    queue_wait: float = 0.0
    """Seconds from arrival to dispatch, summed over `waited`."""
    waited: float = 0.0
    """Queue entries: requests, or parts of one that was split."""
    request_seconds: float = 0.0
    """From a request's last byte to its answer, summed over `answered`."""
    answered: float = 0.0
    """Requests."""
    web_cpu: tuple[float, ...] = (0.0,) * contract.MAX_WEB_PROCESSES
    """CPU seconds of each web process by its number; all zero where they are not exported."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """What one page says."""

    sample: PodSample
    counted: Counted
    max_batch_size: int | None
    """In effect, in rows, requests or cost; the largest of the methods'. None: not exported."""
    batch_interval: float | None
    """Seconds, in effect; the longest of the methods'."""
    process_memory: float | None = None
    """Bytes of the largest model process."""


class _Figures:
    """Sums and the like over the series of a metric."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Points]) -> None:
        self._values = values

    def on_lanes(self) -> "_Figures":
        """Without methods that run as many calls at once as requests are let in.

        Such a call, of an async method without batching, occupies no lane: it waits, often for
        rows that it submits to other methods, and those count there. Its seconds would look like
        slow batches and its rows like more demand. Where a replica has no other methods, they stay.
        """
        lanes = {one.method: value for one, value in self.points(contract.METRIC_LANES)}
        fewest = min(lanes.values(), default=0.0)
        calls = {method for method, count in lanes.items() if count > fewest}
        if len(lanes) > 1 and fewest <= 0:
            # which are calls cannot be told now, and what is counted must not change
            raise MetricsUnavailableError("incomplete", f"{contract.METRIC_LANES}: none has joined")
        if not calls:
            return self
        return _Figures(
            {
                name: [point for point in points if point[0].method not in calls]
                for name, points in self._values.items()
            }
        )

    def points(self, name: str) -> Points:
        return self._values.get(name, [])

    def required(self, name: str) -> Points:
        points = self.points(name)
        if not points:
            raise MetricsUnavailableError("incomplete", f"expected {name}, which is not exported")
        return points

    def total(self, name: str) -> float:
        return sum(value for _, value in self.required(name))

    def total_or_zero(self, name: str) -> float:
        return sum(value for _, value in self.points(name))

    def shared(self, name: str) -> float:
        """Of what all methods have together, and each says whole."""
        return max(value for _, value in self.required(name))

    def within(self, name: str, least: float, most: float) -> float | None:
        """The largest; every one must be possible."""
        values = [value for _, value in self.points(name)]
        if values and not least <= min(values) <= max(values) <= most:
            message = f"{name}: expected {least:g} to {most:g}, got {min(values)} to {max(values)}"
            raise MetricsUnavailableError("invalid", message)
        return max(values, default=None)

    def by_reason(self, name: str, reasons: Sequence[str]) -> tuple[float, ...]:
        """In the order of `reasons`; a reason of a later version counts as none of them."""
        return self.by_label(name, "reason", reasons)

    def by_label(self, name: str, label: str, members: Sequence[str]) -> tuple[float, ...]:
        """In the order of `members`; what is none of them does not count."""
        counts = dict.fromkeys(members, 0.0)
        for series, value in self.points(name):
            member = series.labels.get(label, "")
            if member in counts:
                counts[member] += value
        return tuple(counts.values())

    def counted(self) -> Counted:
        """Of all that is known of a replica, what says most in words."""
        self.required(contract.METRIC_BATCHES)
        wait, request = contract.METRIC_QUEUE_WAIT_SECONDS, contract.METRIC_REQUEST_SECONDS
        return Counted(
            released=self.by_reason(contract.METRIC_BATCHES, contract.RELEASE_REASONS),
            rejected=self.by_reason(contract.METRIC_ROWS_REJECTED, contract.REJECTION_REASONS),
            queue_wait=self.total_or_zero(f"{wait}_sum"),
            waited=self.total_or_zero(f"{wait}_count"),
            request_seconds=self.total_or_zero(f"{request}_sum"),
            answered=self.total_or_zero(f"{request}_count"),
            web_cpu=self.by_label(contract.METRIC_WEB_CPU_SECONDS, "process", _WEB_PROCESSES),
        )


_WEB_PROCESSES: Final = tuple(map(str, range(contract.MAX_WEB_PROCESSES)))
_FULL: Final = contract.RELEASE_REASONS.index("full")


def parse_page(
    text: str,
    pod: str,
    *,
    time: float,
    unix_time: float,
    layout: Layout | None = None,
    startup: float | None = None,
    revision: str = "",
) -> MetricsPage:
    """Read one page.

    Args:
        text: As it came from the pod.
        pod: Its uid.
        time: Of the scrape, monotonic seconds.
        unix_time: Of the scrape, wall clock; only compared with the start of the process.
        layout: Of earlier pages of the same revision; saves most of the work.
        startup: Seconds that the pod took to become ready, which its page does not say.
        revision: That the pod runs; nor does it say that.

    Raises:
        MetricsUnavailableError: The page is not one that could be true.
    """
    figures = _Figures(read(text, layout or Layout())).on_lanes()
    start, counted = figures.total(contract.METRIC_PROCESS_START_TIME), figures.counted()
    sample = PodSample(
        pod=pod,
        time=time,
        process_start=start,
        uptime=max(0.0, unix_time - start),
        rows_received=figures.total(contract.METRIC_ROWS_RECEIVED),
        rows_rejected=figures.total_or_zero(contract.METRIC_ROWS_REJECTED),
        wait_seconds=counted.queue_wait,
        answered=figures.total_or_zero(contract.METRIC_REQUESTS),
        batches=figures.total(f"{contract.METRIC_BATCH_ROWS}_count"),
        rows=figures.total(f"{contract.METRIC_BATCH_ROWS}_sum"),
        full_batches=counted.released[_FULL],
        batch_seconds=figures.total(f"{contract.METRIC_BATCH_SECONDS}_sum"),
        rows_squared=figures.total_or_zero(contract.METRIC_BATCH_ROWS_SQUARED),
        row_seconds=figures.total_or_zero(contract.METRIC_BATCH_ROW_SECONDS),
        batch_rows_buckets=_buckets(figures.points(f"{contract.METRIC_BATCH_ROWS}_bucket")),
        queue_rows=figures.total(contract.METRIC_QUEUE_ROWS),
        lanes=figures.shared(contract.METRIC_LANES),
        sizes=figures.total_or_zero(contract.METRIC_BATCH_SIZE),
        requests=figures.total_or_zero(f"{contract.METRIC_BATCH_REQUESTS}_sum"),
        in_flight=figures.total(contract.METRIC_IN_FLIGHT_REQUESTS),
        startup=startup,
        revision=revision,
    )
    size = figures.within(contract.METRIC_MAX_BATCH_SIZE, 1, contract.MAX_BATCH_SIZE_LIMIT)
    figures.within(contract.METRIC_LANES, 0, MAX_LANES)
    return MetricsPage(
        sample=sample,
        counted=counted,
        max_batch_size=None if size is None else int(size),
        batch_interval=figures.within(
            contract.METRIC_BATCH_INTERVAL_SECONDS, 0, MAX_BATCH_INTERVAL
        ),
        process_memory=figures.within(
            contract.METRIC_MODEL_PROCESS_MEMORY_BYTES, 0, MAX_PROCESS_MEMORY
        ),
    )


def _buckets(points: Iterable[tuple[Series, float]]) -> Edges:
    """Cumulative (upper edge, batches) over all methods, whose edges may differ.

    Adding cumulative counts would be wrong where one method has an edge that another has not, so
    each bucket is taken alone first.
    """
    by_method: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for series, value in points:
        by_method[series.method].append((_edge(series), value))
    alone: defaultdict[float, float] = defaultdict(float)
    for buckets in by_method.values():
        below = 0.0
        for edge, count in sorted(buckets):
            if count < below:
                raise MetricsUnavailableError("invalid", f"bucket le={edge}: fewer than below it")
            alone[edge] += count - below
            below = count
    return _cumulative(alone)


def _edge(series: Series) -> float:
    try:
        edge = float(series.labels["le"])
    except (KeyError, ValueError) as error:
        raise MetricsUnavailableError("invalid", f"a bucket without an edge: {error}") from error
    if math.isnan(edge):
        raise MetricsUnavailableError("invalid", "a bucket with edge NaN")
    return edge


def _cumulative(alone: dict[float, float]) -> Edges:
    total = 0.0
    edges = []
    for edge, count in sorted(alone.items()):
        total += count
        edges.append((edge, total))
    return tuple(edges)
