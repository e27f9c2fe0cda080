"""Rows that arrive, not rows that were served: the latter end at capacity."""

import math
from collections.abc import Iterable, Sequence

from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.scaling.window import Interval

LEVEL_SECONDS = 10.0
"""Demand of the present is read from no more than this much of the past."""


def arrival_rate(changes: Sequence[PodChange], interval: float, coverage: float) -> float:
    """Rows per second that reach all ready pods, those unseen taken to be like those seen.

    Args:
        changes: Of the pods that answered.
        interval: Seconds since the last look. A pod younger than that is averaged over all of it;
            else load that moved to it would count twice.
        coverage: Share of the ready pods that `changes` is of, in (0, 1].
    """
    return sum(one.received / max(one.seconds, interval) for one in changes) / coverage


def rows_per_request(changes: Iterable[PodChange], interval: float) -> float:
    """Of the requests that came, at least 1; replicas that do not count them have one row in each.

    Counting those rows like those of the others would let more of them mean fewer requests.

    Args:
        changes: Of the pods that answered.
        interval: See `arrival_rate`; each pod has the same weight there and here.
    """
    rows = requests = 0.0
    for one in changes:
        seconds = max(one.seconds, interval)
        rows += one.received / seconds
        requests += (one.requests_received or one.received) / seconds
    return max(1.0, rows / requests) if requests > 0.0 else 1.0


def mean_arrival(intervals: Sequence[Interval]) -> float:
    """Rows per second over all of `intervals`, which are not empty."""
    seconds = sum(interval.seconds for interval in intervals)
    return sum(interval.arrival * interval.seconds for interval in intervals) / seconds


def mean_in_flight(intervals: Sequence[Interval]) -> float:
    """Requests in flight over all of `intervals`, which are not empty."""
    seconds = sum(interval.seconds for interval in intervals)
    return sum(interval.in_flight * interval.seconds for interval in intervals) / seconds


def level(intervals: Sequence[Interval]) -> float:
    """Rows per second of the present: the highest mean of the last 1, 2, 4, ... intervals.

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
        if (count == take or count == len(intervals)) and counted > 0.0:
            highest = max(highest, rows / seconds * (1.0 - 1.0 / math.sqrt(counted)))
        take = 2 * take if count == take else take
    return highest
