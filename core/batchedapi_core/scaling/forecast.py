"""Demand as it will be when a replica started now is ready, while demand is rising.

A rise is looked for twice: over a few seconds, with little doubt allowed, for what starts suddenly;
and over the window, for what is slow and would drown in the noise of seconds. Whether and how fast
demand rises is read from before the last interval; the last must go on rising and bounds how fast.
So one sudden jump is no trend, and more rows in it never make for a smaller forecast. Nor is a step
one that the window still shows: two levels explain it better than a line does.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from batchedapi_core.scaling.window import Interval, recent

FEWEST_INTERVALS = 3
"""Before the last one: a line through two points leaves no doubt, however much there should be."""
SUDDEN_SECONDS = 10.0
SUDDEN_DOUBT = 3.0
"""Standard errors above zero from which on a slope of few seconds counts as a rise."""
DOUBT = 2.0
"""The same over the whole window, which has more points and fewer that happen to rise."""
STILL_SECONDS = 15.0
"""A rise over the window is only as fast as it was lately."""
STEP_ERROR = 0.7
"""Of the squared error of a line: two levels that leave less are a step. More would hide the
beginning of many a ramp, less would take the noise on a step for one."""


def trend(intervals: Sequence[Interval]) -> float:
    """Rows/s by which demand rises each second, less one standard error; 0 if it may not rise."""
    if len(intervals) <= FEWEST_INTERVALS:
        return 0.0
    now = intervals[-1].time
    sudden = recent(intervals, now, SUDDEN_SECONDS)
    still = recent(intervals, now, STILL_SECONDS)
    lately = slope_and_error(still if len(still) >= FEWEST_INTERVALS else intervals[-2:])[0]
    slow = 0.0 if _stepped(intervals[:-1]) else _rise(intervals, DOUBT, lately)
    return max(_rise(sudden, SUDDEN_DOUBT, slope_and_error(intervals[-2:])[0]), slow)


def forecast(trend: float, *, base: float, lead: float, cap: float) -> float:
    """Rows/s to expect on top of `base` in `lead` seconds, at most the share `cap` of it."""
    return min(trend * lead, cap * base)


def slope_and_error(intervals: Sequence[Interval]) -> tuple[float, float]:
    """Least squares through arrival rates: rows/s each second, and its standard error.

    The error is that of the residuals and, as few points may happen to lie on a line, that of
    Poisson counts of requests over such intervals.
    """
    count = len(intervals)
    slope, spread, squares = _line(intervals)
    if spread <= 0.0:
        return 0.0, 0.0
    mean_rate = sum(one.arrival for one in intervals) / count
    residual = squares / max(1, count - 2)
    poisson = mean_rate * _rows_per_request(intervals) / max(1e-3, intervals[-1].seconds)
    return slope, math.sqrt(residual / spread) + math.sqrt(poisson / spread)


def _line(intervals: Sequence[Interval]) -> tuple[float, float, float]:
    """Slope, squared spread of the times, and sum of squared errors of the line that fits best."""
    count = len(intervals)
    mean_time = sum(one.time for one in intervals) / count
    mean_rate = sum(one.arrival for one in intervals) / count
    points = [(one.time - mean_time, one.arrival - mean_rate) for one in intervals]
    spread = sum(time**2 for time, _ in points)
    slope = sum(time * rate for time, rate in points) / spread if spread > 0.0 else 0.0
    return slope, spread, sum((rate - slope * time) ** 2 for time, rate in points)


def _rise(intervals: Sequence[Interval], doubt: float, at_most: float) -> float:
    if len(intervals) <= FEWEST_INTERVALS:
        return 0.0
    slope, error = slope_and_error(intervals[:-1])
    rise = min(slope, at_most)
    return rise - error if rise > doubt * error else 0.0


def _rows_per_request(intervals: Sequence[Interval]) -> float:
    requests = sum(one.requests for one in intervals)
    return sum(one.arrival * one.seconds for one in intervals) / requests if requests > 0 else 1.0


def _stepped(intervals: Sequence[Interval]) -> bool:
    """Whether demand went from one level to another and rises no more."""
    if len(intervals) <= FEWEST_INTERVALS:
        return False
    cut, error = _two_levels([one.arrival for one in intervals])
    _, _, line = _line(intervals)
    if error >= STEP_ERROR * line:
        return False
    since = intervals[cut:]
    if len(since) < FEWEST_INTERVALS:
        return True
    still, doubt = slope_and_error(since)
    return still <= doubt


def _two_levels(rates: Sequence[float]) -> tuple[int, float]:
    """Where the second of two levels begins that fit best, and the sum of squared errors."""
    total, squares = sum(rates), sum(rate * rate for rate in rates)
    errors = (
        (squares - before**2 / cut - (total - before) ** 2 / (len(rates) - cut), cut)
        for cut, before in enumerate(accumulate(rates[:-1]), 1)
    )
    error, cut = min(errors)
    return cut, error
