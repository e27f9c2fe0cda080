"""The load of an API: counts of its pods over the window, demand, and who has most of it."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import NamedTuple

from batchedapi_core.scaling.policy import LEVEL_SECONDS, ScalingPolicy
from batchedapi_core.scaling.samples import PodChange, PodSample
from batchedapi_core.service_model import ONE_ROW, BatchSums, RequestRows, ServiceTime

# A mean of per-pod means gives an idle pod the weight of a busy one and is wrong by as much as
# the load is uneven; so counts are pooled, and only the pooled counts are divided.

_SAME = 0.02
"""A page is read while batches are counted: of two counters that are equal one may be ahead."""
_NOTHING = 1e-6
"""Least batches or seconds: less is rounding, or an exporter that counts in fractions."""


class BatchTotals(NamedTuple):
    """Counts over pods, for any span of time."""

    batches: float = 0.0
    rows: float = 0.0
    full_batches: float = 0.0
    batch_seconds: float = 0.0
    lane_seconds: float = 0.0  # the lanes that could have run batches, times how long
    sizes: float = 0.0  # sum over batches, in the unit of maxBatchSize: rows, requests or cost
    requests: float = 0.0  # in batches
    wait_seconds: float = 0.0  # from arrival to dispatch, sum over `requests`


@dataclass(frozen=True, slots=True)
class LoadInterval:
    """Events between two looks; in one row, since of every API there are many."""

    figures: "array[float]"  # six of `of`, those of totals and of warm
    revision: str  # that `warm` is of

    @classmethod
    def of(
        cls,
        time: float,  # seconds, its end
        seconds: float,
        arrival: float,  # rows/s, of all ready pods
        totals: BatchTotals,  # of the pods that answered
        *,
        in_flight: float = 0.0,  # requests in all ready pods, at its end
        warm: BatchSums | None = None,  # of pods that are not warming up
        came: RequestRows = ONE_ROW,
        revision: str = "",
    ) -> "LoadInterval":
        """As seen."""
        moments = astuple(warm or BatchSums())
        scalars = (time, seconds, arrival, in_flight, came.mean, came.together)
        return cls(array("d", (*scalars, *totals, *moments)), revision)

    @property
    def time(self) -> float:
        """Seconds, its end."""
        return self.figures[0]

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.figures[1]

    @property
    def arrival(self) -> float:
        """Rows/s, of all ready pods."""
        return self.figures[2]

    @property
    def in_flight(self) -> float:
        """Requests in all ready pods, at its end."""
        return self.figures[3]

    @property
    def came(self) -> RequestRows:
        """Rows that came at once."""
        return RequestRows(self.figures[4], self.figures[5])

    @property
    def totals(self) -> BatchTotals:
        """Totals of the pods that answered."""
        return BatchTotals(*self.figures[_SCALARS:_PLAIN])

    @property
    def warm(self) -> BatchSums:
        """Sums of pods that are not warming up."""
        return BatchSums(*self.figures[_PLAIN:])

    @property
    def requests(self) -> float:
        """Requests that reached all ready pods."""
        return self.arrival * self.seconds / self.figures[4]


_SCALARS = 6
_PLAIN = _SCALARS + len(BatchTotals._fields)


@dataclass(frozen=True, slots=True)
class BatchingWindow:
    """Pooled batching over the last window; None where there was nothing to divide by."""

    seconds: float  # covered
    rows: float
    batches: float
    mean_rows: float | None  # a batch
    fill_percent: float | None  # the mean batch of the largest, both in the unit of maxBatchSize
    rows_per_second: float | None  # in batches, of the pods that answered
    batches_per_second: float | None
    full_share: float | None  # of the batches, released because full; 0..1
    busy: float | None  # of the lanes' time; over 1 if batches outlast the time between looks


def totals_of(changes: Iterable[PodChange], lanes: int) -> BatchTotals:
    """Pool what pods did; `lanes` stands in where a pod does not say how many it has."""
    parts = [
        BatchTotals(
            change.sums.batches,
            change.sums.rows,
            change.full_batches,
            change.sums.seconds,
            change.seconds * (change.lanes or lanes),
            change.sizes,
            change.requests,
            change.wait_seconds,
        )
        for change in changes
    ]
    return pooled(parts)


def pooled(parts: Sequence[BatchTotals]) -> BatchTotals:
    """Add up counts."""
    return BatchTotals(*map(sum, zip(*parts, strict=True)))


def recent(
    intervals: Sequence[LoadInterval], now: float, window: float
) -> tuple[LoadInterval, ...]:
    """The intervals that ended within the last `window` seconds."""
    return tuple(one for one in intervals if now - one.time < window - 1e-6)


def rows_per_size(intervals: Sequence[LoadInterval], samples: Iterable[PodSample]) -> float | None:
    """Rows for one of size, in batches of `intervals`; of all `samples` count if none ran there.

    1 where rows are what is limited, the rows of the mean request where requests are, and 1 over
    the cost of the mean row where a method says what rows cost. None without batches.
    """
    totals = pooled([interval.totals for interval in intervals])
    rows, sizes = totals.rows, totals.sizes
    if ratio(rows, sizes) is None:
        counted = list(samples)
        rows, sizes = sum(one.rows for one in counted), sum(one.sizes for one in counted)
    each = ratio(rows, sizes)
    return 1.0 if each is not None and abs(each - 1.0) < _SAME else each


def batching_window(intervals: Sequence[LoadInterval], policy: ScalingPolicy) -> BatchingWindow:
    """Ratios over all of `intervals`."""
    totals = pooled([interval.totals for interval in intervals])
    seconds = sum(interval.seconds for interval in intervals)
    counted, largest = totals.rows, policy.max_batch_size
    if policy.max_size is not None:
        counted, largest = totals.sizes, policy.max_size
    mean_size = ratio(counted, totals.batches)
    return BatchingWindow(
        seconds=seconds,
        rows=totals.rows,
        batches=totals.batches,
        mean_rows=ratio(totals.rows, totals.batches),
        fill_percent=None if mean_size is None else 100.0 * mean_size / largest,
        rows_per_second=ratio(totals.rows, seconds),
        batches_per_second=ratio(totals.batches, seconds),
        full_share=ratio(totals.full_batches, totals.batches),
        busy=ratio(totals.batch_seconds, totals.lane_seconds),
    )


def ratio(part: float, whole: float) -> float | None:
    """Part / whole, or None where there is no whole."""
    return part / whole if whole > _NOTHING else None


# Rows that arrive, not rows that were served: the latter end at capacity.


def arrival_rate(changes: Sequence[PodChange], interval: float, coverage: float) -> float:
    """Rows per second that reach all ready pods, those unseen taken to be like those seen.

    Args:
        changes: Of the pods that answered.
        interval: Seconds since the last look. A pod younger than that is averaged over all of it;
            else load that moved to it would count twice.
        coverage: Share of the ready pods that `changes` is of, in (0, 1].
    """
    return sum(one.received / max(one.seconds, interval) for one in changes) / coverage


def came_in(changes: Iterable[PodChange], interval: float) -> RequestRows:
    """Rows that came at once; of replicas that do not count requests one row in each.

    Counting those rows like those of the others would let more of them mean fewer requests.

    Args:
        changes: Of the pods that answered.
        interval: See `arrival_rate`; each pod has the same weight there and here.
    """
    rows = requests = squares = 0.0
    for one in changes:
        seconds = max(one.seconds, interval)
        rows += one.received / seconds
        requests += (one.requests_received or one.received) / seconds
        squares += one.squares_received / seconds
    return _rows_at_once(rows, requests, squares)


def came_within(intervals: Iterable[LoadInterval]) -> RequestRows:
    """Rows that came at once, over all of `intervals`."""
    rows = requests = squares = 0.0
    for one in intervals:
        came = one.arrival * one.seconds
        rows, requests = rows + came, requests + one.requests
        squares += came * one.came.together
    return _rows_at_once(rows, requests, squares)


def _rows_at_once(rows: float, requests: float, squares: float) -> RequestRows:
    mean = max(1.0, rows / requests) if requests > 0.0 else 1.0
    return RequestRows(mean, max(mean, squares / rows) if rows > 0.0 else mean)


def mean_arrival(intervals: Sequence[LoadInterval]) -> float:
    """Rows per second over all of `intervals`, which are not empty."""
    return fmean((one.arrival for one in intervals), (one.seconds for one in intervals))


def mean_in_flight(intervals: Sequence[LoadInterval]) -> float:
    """Requests in flight over all of `intervals`, which are not empty."""
    return fmean((one.in_flight for one in intervals), (one.seconds for one in intervals))


def level(intervals: Sequence[LoadInterval], *, shortest: float = 0.0) -> float:
    """Rows per second of the present: the highest mean of the last 1, 2, 4, ... intervals.

    Means over less than `shortest` seconds say nothing: what comes in those can wait.

    Each mean counts less one standard error of a Poisson count, which is 1/sqrt(N) of it for N. So
    a jump counts after one interval, chance is averaged out, and a fall is believed once all of
    them show it. Over the few intervals it is requests that count: one of many rows is no jump.
    Over all of them, seconds enough, it is rows: else few large requests were always too little.
    More rows in any interval never make it lower.
    """
    highest = seconds = rows = requests = 0.0
    take = 1
    for count, one in enumerate(reversed(intervals), 1):
        seconds, rows = seconds + one.seconds, rows + one.arrival * one.seconds
        requests += one.requests
        whole = count == len(intervals) and seconds >= LEVEL_SECONDS / 2
        counted = rows if whole else requests
        told = (count == take and seconds >= shortest) or count == len(intervals)
        if told and counted > 0.0:
            highest = max(highest, rows / seconds * (1.0 - 1.0 / math.sqrt(counted)))
        take = 2 * take if count == take else take
    return highest


# The simulated loads `sticky` and `slow-pods` show what shares are for: planned as if load were
# even, 29 % instead of 19 % of the requests are late, and 9 % instead of 5 %, at 19 and 21 % less
# cost.
#
# A pod's load is what arrives at it, times how much slower than the pooled service time it is. A
# balancer that splits evenly makes the slowest pod the limit, one with sticky connections the
# most popular.

CHANCE = 2.0
"""Shares of few requests differ by chance, and the highest of many pods most: as much is left out
as this many times 1/sqrt(N), nearly three standard errors of a share that is smoothed."""


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's load over the mean pod's, smoothed."""

    pod: str
    load: float
    requests: float = 0.0  # that it rests on, forgotten as fast


def shares_of(
    policy: ScalingPolicy,
    before: Iterable[Share],
    changes: Sequence[PodChange],
    service: ServiceTime | None,
    interval: float,
    *,
    ready: int,
) -> tuple[Share, ...]:
    """Shares of the pods that had time to get their part of the load; none where there is one pod.

    Of a pod that this look says nothing of, what was known stands: while some pods are not seen it
    may be one of them. Once all are seen, the others are gone.

    Args:
        policy: Says how fast a share is forgotten.
        before: At the last look.
        changes: Of the pods that answered.
        service: Pooled service time; without it no pod can be called slow.
        interval: Seconds since the last look.
        ready: Pods that there are.
    """
    if ready <= 1:
        return ()  # one alone is as loaded as the mean
    seen = {change.pod for change in changes}
    shares = {one.pod: one for one in before if one.pod in seen or len(seen) < ready}
    loads = _loads(changes, service, interval)
    mean = sum(load for _, load in loads) / len(loads) if loads else 0.0
    if len(loads) > 1 and mean > 0.0:
        keep = 0.5 ** (interval / policy.imbalance_half_life)
        for change, load in loads:
            known = shares.get(change.pod, Share(change.pod, 1.0))
            shares[change.pod] = Share(
                change.pod,
                known.load * keep + load / mean * (1.0 - keep),
                known.requests * keep + (change.requests_received or change.received),
            )
    return tuple(shares.values())


def imbalance(policy: ScalingPolicy, shares: Iterable[Share]) -> float:
    """Factor on the need that keeps the hottest replica below `hot_utilization`.

    Or below the target, where the user set that higher: even load then adds nothing.
    """
    limit = max(policy.hot_utilization, policy.target_utilization)
    # of each pod's load over the mean pod's, what is not due to chance
    surely = (s.load * (1.0 - CHANCE / math.sqrt(max(s.requests, CHANCE**2))) for s in shares)
    hottest = max(surely, default=1.0)
    factor = hottest * policy.target_utilization / limit
    return min(policy.imbalance_cap, max(1.0, factor))


def _loads(
    changes: Sequence[PodChange], service: ServiceTime | None, interval: float
) -> list[tuple[PodChange, float]]:
    """Rows/s of each pod, more where it is slow; of one that ran no batch, what came."""
    if service is None:
        return []
    loads = []
    for change in changes:
        if change.mature:
            sums, slowness = change.sums, 1.0
            if change.tells_service_time:
                slowness = sums.seconds / sums.modelled(service)
            rate = change.received / max(change.seconds, interval)
            loads.append((change, rate * slowness))
    return loads
