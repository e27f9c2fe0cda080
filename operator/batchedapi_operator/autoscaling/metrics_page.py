"""A replica's Prometheus page as a sample for the autoscaler. Pure, and suspicious.

A pod runs its user's code, so its page may say anything. A page that is too large, not parseable,
incomplete or impossible is as good as none: the pod then counts as not seen, never as idle.
"""

import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchedapi_core import contract
from batchedapi_core.scaling.samples import LARGEST_COUNT, PodSample
from batchedapi_operator.errors import MetricsUnavailableError

# The lines of a Prometheus page that the autoscaler reads, and no others. Pure, and suspicious.
#
# A page is read every two seconds and changes in nothing but its numbers, so what a line is about
# is found once and remembered: the text before the number is looked up, and parsed only when new.

MAX_BYTES: Final = 2**19
"""A whole page of 32 methods, from a replica that knows no narrower one, has 330 KiB."""
MAX_LINES: Final = 8192
MAX_SERIES: Final = 3000
"""Most series that are read; a replica with one method has about 70, with 32 about 2300."""
MAX_LINE: Final = 1000
MAX_NUMBER: Final = 64
"""Characters: making a number of very many digits takes long."""
REMEMBERED: Final = 65536
"""Characters of lines that one layout may add, of those that are read and of others: those of 12
methods. Further ones are looked at anew every time."""
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"(?:,|$)')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED: Final = re.compile(r"\\.")

Labels = tuple[tuple[str, str], ...]


class PageSeries:
    """One series; within a layout there is one object for each, so identity is equality."""

    __slots__ = ("labels", "method", "name")

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.labels = dict(labels)
        self.method = self.labels.get("method", "")


Points = list[tuple[PageSeries, float]]


class Table:
    """Lines and series that are remembered, of all pages: most APIs name their method alike."""

    __slots__ = ("characters", "lines", "series")

    def __init__(self) -> None:
        self.lines: dict[str, PageSeries | None] = {}
        """By the text before the number; None: of no metric that is read."""
        self.series: dict[tuple[str, Labels], PageSeries] = {}
        self.characters = 0
        """Length of all lines; the owner of the table begins a new one when they are too many."""

    def remember(self, before: str, series: PageSeries | None) -> None:
        """A line that is not there yet."""
        self.lines[before] = series
        self.characters += len(before)


class Layout:
    """Maps the text before a number to its series, and bounds how much one revision may add."""

    __slots__ = ("_room", "_room_for_others", "_table", "lines")

    def __init__(self, table: Table | None = None) -> None:
        self._table = table or Table()
        self.lines = self._table.lines
        self._room = REMEMBERED
        self._room_for_others = REMEMBERED

    def is_read(self, line: str, before: str) -> bool:
        """Whether a line that is not in `lines` is of a metric that is read."""
        if line.partition("{")[0].partition(" ")[0] in contract.SCALING_SERIES:
            return True
        if 0 < len(before) <= self._room_for_others:
            self._room_for_others -= len(before)
            self._table.remember(before, None)
        return False

    def find(
        self, line: str, before: str, fresh: dict[tuple[str, Labels], PageSeries]
    ) -> PageSeries:
        """The series of a line that is not in `lines`; remembered there while there is room.

        Args:
            line: The whole line, which begins with the name of a metric that is read.
            before: What stands before its number.
            fresh: Series that this page has and the layout does not.

        Raises:
            MetricsUnavailableError: It is not a line of an exposition.
        """
        identity = _identity(line, before)
        known = self._table.series
        series = known.get(identity) or fresh.get(identity) or PageSeries(*identity)
        if len(before) <= self._room:
            self._room -= len(before)
            known[identity] = series
            self._table.remember(before, series)
        else:
            fresh[identity] = series
        return series


def read(text: str, layout: Layout) -> Mapping[str, Points]:
    """Values by metric name, one for each series.

    Raises:
        MetricsUnavailableError: Too large, cut off, no exposition, or with an impossible value.
    """
    if len(text) > MAX_BYTES:
        raise MetricsUnavailableError("too_large", f"more than {MAX_BYTES} bytes")
    if text.count("\n") > MAX_LINES:
        raise MetricsUnavailableError("too_large", f"more than {MAX_LINES} lines")
    if text and not text.endswith("\n"):
        raise MetricsUnavailableError("malformed", "the last line is cut off")
    values: defaultdict[str, Points] = defaultdict(list)
    known, unknown = layout.lines, PageSeries("", ())
    fresh, seen = dict[tuple[str, Labels], PageSeries](), set[PageSeries]()
    for line in text.split("\n"):
        before, _, number = line.rpartition(" ")
        series = known.get(before, unknown)
        if series is unknown:
            series = layout.find(line, before, fresh) if layout.is_read(line, before) else None
        if series is None:
            continue
        if series in seen:
            raise MetricsUnavailableError("invalid", f"{before:.200}: the same series twice")
        seen.add(series)
        if len(seen) > MAX_SERIES:
            raise MetricsUnavailableError("too_large", f"more than {MAX_SERIES} series")
        values[series.name].append((series, _value(before, number)))
    return values


def _value(before: str, number: str) -> float:
    try:
        value = float(number) if len(number) <= MAX_NUMBER and "_" not in number else None
    except ValueError:
        value = None
    if value is None:
        message = f"{before:.200}: not a number: {number:.50}"
        raise MetricsUnavailableError("malformed", message)
    if not 0.0 <= value <= LARGEST_COUNT:
        raise MetricsUnavailableError("invalid", f"{before:.200}: {value}")
    return value


def _identity(line: str, before: str) -> tuple[str, Labels]:
    """Name and labels, in an order that does not depend on the page's."""
    if len(line) > MAX_LINE:
        raise MetricsUnavailableError("too_large", f"{line:.60}: a line over {MAX_LINE} long")
    name, brace, rest = before.partition("{")
    name = name.rstrip()
    if name not in contract.SCALING_SERIES:
        raise MetricsUnavailableError("malformed", f"{line:.200}: expected name, labels and number")
    if not brace:
        return name, ()
    text, closing, after = rest.rpartition("}")
    if not closing or after.strip():
        raise MetricsUnavailableError("malformed", f"{line:.200}: labels without an end")
    labels: dict[str, str] = {}
    place = 0
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None or found[1] in labels:
            raise MetricsUnavailableError("malformed", f"{line:.200}: not a list of labels")
        labels[found[1]] = _ESCAPED.sub(lambda it: _ESCAPES.get(it[0], it[0]), found[2])
        place = found.end()
    return name, tuple(sorted(labels.items()))


MAX_LANES: Final = 65536
"""64 processes of 1024 threads; calls of an async method are let in up to 30000 at once."""
MAX_BATCH_INTERVAL: Final = 3600.0
"""Seconds; a manifest can say a minute."""
MAX_PROCESS_MEMORY: Final = 2.0**50


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
    lengths: float = 0.0
    padded_lengths: float = 0.0
    """Of rows in batches; zero where they have none."""
    web_cpu: tuple[float, ...] = (0.0,) * contract.MAX_WEB_PROCESSES
    """CPU seconds of each web process by its number; all zero where they are not exported."""
    latencies: tuple[float, ...] = (0.0,) * len(contract.LATENCY_BUCKETS)
    """Requests answered within each of contract.LATENCY_BUCKETS; all zero where not exported."""

    def row(self) -> "array[float]":
        """All of them in one row, as `PodSample.further`."""
        plain = (self.queue_wait, self.waited, self.request_seconds, self.answered)
        lengths = (self.lengths, self.padded_lengths)
        explaining = (*self.released, *self.rejected, *self.web_cpu, *self.latencies)
        return array("d", (*plain, *lengths, *explaining))


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The contents of one page."""

    sample: PodSample
    counted: Counted
    max_batch_size: int | None
    """In effect, in rows, requests or cost; the largest of the methods'. None: not exported."""
    batch_interval: float | None
    """Seconds, in effect; the longest of the methods'."""
    process_memory: float | None = None
    """Bytes of the largest model process."""
    one_by_one: bool = False
    """Whether batches of some method are run request by request."""
    methods: int = 1
    """Methods that share the lanes."""
    failed: float | None = None
    """Requests that ended with one of contract.FAILED_CODES, of all processes since they started.
    None: the replica is too old to tell codes."""
    refused: float = 0.0
    """The same of contract.REFUSED_CODES."""


class _SeriesSums:
    """Sums and the like over the series of a metric."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Points]) -> None:
        self._values = values

    def on_lanes(self) -> "_SeriesSums":
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
        return _SeriesSums(
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
        """A figure that all methods have together, and each exports whole."""
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

    def fixed_of_lengths(self) -> float | None:
        """Seconds of a batch by the t(n, L) of the one method; None: it has none."""
        terms = contract.SERVICE_TIME_TERMS
        fixed, _, per_length = self.by_label(contract.METRIC_SERVICE_TIME, "term", terms)
        alone = len(self.points(contract.METRIC_SERVICE_TIME)) == len(terms)
        return fixed if alone and per_length > 0.0 else None

    def counted(self) -> Counted:
        """Counters that no decision needs, but an explanation does."""
        self.required(contract.METRIC_BATCHES)
        wait, request = contract.METRIC_QUEUE_WAIT_SECONDS, contract.METRIC_REQUEST_SECONDS
        return Counted(
            released=self.by_reason(contract.METRIC_BATCHES, contract.RELEASE_REASONS),
            rejected=self.by_reason(contract.METRIC_ROWS_REJECTED, contract.REJECTION_REASONS),
            queue_wait=self.total_or_zero(f"{wait}_sum"),
            waited=self.total_or_zero(f"{wait}_count"),
            request_seconds=self.total_or_zero(f"{request}_sum"),
            answered=self.total_or_zero(f"{request}_count"),
            lengths=self.total_or_zero(contract.METRIC_BATCH_LENGTHS),
            padded_lengths=self.total_or_zero(contract.METRIC_BATCH_PADDED_LENGTHS),
            web_cpu=self.by_label(contract.METRIC_WEB_CPU_SECONDS, "process", _WEB_PROCESSES),
            latencies=self.by_label(f"{request}_bucket", "le", _LATENCIES),
        )


_WEB_PROCESSES: Final = tuple(map(str, range(contract.MAX_WEB_PROCESSES)))
_LATENCIES: Final = tuple(map(str, contract.LATENCY_BUCKETS))
"""As the page words them."""
_FULL: Final = contract.RELEASE_REASONS.index("full")


def parse_page(
    text: str,
    pod: str,
    *,
    time: float,
    unix_time: float,
    layout: Layout | None = None,
    startup: float | None = None,
    placement: float | None = None,
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
        placement: Seconds that it waited for a node before; nor does it say that.
        revision: That the pod runs; nor does it say that.

    Raises:
        MetricsUnavailableError: The page is not one that could be true.
    """
    figures = _SeriesSums(read(text, layout or Layout())).on_lanes()
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
        squares_received=figures.total_or_zero(contract.METRIC_REQUEST_ROWS_SQUARED),
        batches=figures.total(f"{contract.METRIC_BATCH_ROWS}_count"),
        rows=figures.total(f"{contract.METRIC_BATCH_ROWS}_sum"),
        full_batches=counted.released[_FULL],
        batch_seconds=figures.total(f"{contract.METRIC_BATCH_SECONDS}_sum"),
        rows_squared=figures.total_or_zero(contract.METRIC_BATCH_ROWS_SQUARED),
        row_seconds=figures.total_or_zero(contract.METRIC_BATCH_ROW_SECONDS),
        queue_rows=figures.total(contract.METRIC_QUEUE_ROWS),
        lanes=figures.shared(contract.METRIC_LANES),
        sizes=figures.total_or_zero(contract.METRIC_BATCH_SIZE),
        requests=figures.total_or_zero(f"{contract.METRIC_BATCH_REQUESTS}_sum"),
        in_flight=figures.total(contract.METRIC_IN_FLIGHT_REQUESTS),
        fixed=figures.fixed_of_lengths(),
        startup=startup,
        placement=placement,
        revision=revision,
        further=counted.row(),
    )
    size = figures.within(contract.METRIC_MAX_BATCH_SIZE, 1, contract.MAX_BATCH_SIZE_LIMIT)
    figures.within(contract.METRIC_LANES, 0, MAX_LANES)
    memory = contract.METRIC_MODEL_PROCESS_MEMORY_BYTES
    interval, requests = contract.METRIC_BATCH_INTERVAL_SECONDS, contract.METRIC_REQUESTS
    told = any(series.labels.get("code") for series, _ in figures.points(requests))
    return MetricsPage(
        sample=sample,
        counted=counted,
        max_batch_size=None if size is None else int(size),
        batch_interval=figures.within(interval, 0, MAX_BATCH_INTERVAL),
        process_memory=figures.within(memory, 0, MAX_PROCESS_MEMORY),
        one_by_one=figures.total_or_zero(contract.METRIC_ONE_BY_ONE) > 0,
        methods=len(figures.points(contract.METRIC_LANES)),
        failed=sum(figures.by_label(requests, "code", contract.FAILED_CODES)) if told else None,
        refused=sum(figures.by_label(requests, "code", contract.REFUSED_CODES)),
    )


@dataclass(frozen=True, slots=True)
class WebPage:
    """The page of a web pod, of an API with one queue for all replicas."""

    sample: PodSample
    """Arrivals alone; a web pod runs no batches."""
    rows: float
    """Rows of all methods that wait in the one queue."""
    oldest: float
    """Seconds for which the oldest of them has waited."""
    cpu: float
    """Seconds, of all its processes since they started."""


def parse_web_page(text: str, pod: str, *, time: float, unix_time: float) -> WebPage:
    """Read one page of a web pod; the arguments are those of `parse_page`.

    Raises:
        MetricsUnavailableError: The page is not one that could be true.
    """
    figures = _SeriesSums(read(text, Layout()))
    start = figures.total(contract.METRIC_PROCESS_START_TIME)
    sample = PodSample(
        pod=pod,
        time=time,
        process_start=start,
        uptime=max(0.0, unix_time - start),
        rows_received=figures.total(contract.METRIC_ROWS_RECEIVED),
        rows_rejected=figures.total_or_zero(contract.METRIC_ROWS_REJECTED),
        answered=figures.total_or_zero(contract.METRIC_REQUESTS),
        squares_received=figures.total_or_zero(contract.METRIC_REQUEST_ROWS_SQUARED),
        in_flight=figures.total(contract.METRIC_IN_FLIGHT_REQUESTS),
        batches=0.0,
        rows=0.0,
        full_batches=0.0,
        batch_seconds=0.0,
        rows_squared=0.0,
        row_seconds=0.0,
        queue_rows=0.0,  # they are in the one queue of all, and have not arrived here
        lanes=0.0,
    )
    ages = (value for _, value in figures.points(contract.METRIC_QUEUE_OLDEST_SECONDS))
    return WebPage(
        sample=sample,
        rows=figures.total(contract.METRIC_QUEUE_ROWS),
        oldest=max(ages, default=0.0),
        cpu=figures.total_or_zero(contract.METRIC_PROCESS_CPU_SECONDS),
    )
