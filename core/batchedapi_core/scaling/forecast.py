"""Demand as it will be when a replica started now is ready, while demand is rising.

A rise is looked for twice: over a few seconds, with little doubt allowed, for what starts suddenly;
and over the window, for what is slow and would drown in the noise of seconds. Whether and how fast
demand rises is read from before the last interval; the last must go on rising and bounds how fast.
So one sudden jump is no trend, and more rows in it never make for a smaller forecast. Nor is a step
one that the window still shows: two levels explain it better than a line does.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from batchedapi_core.scaling.load import LoadInterval, recent
from batchedapi_core.scaling.numbers import (
    MOST_SAVED,
    grouped,
    number,
    quantile,
    short,
    table,
    whole,
)
from batchedapi_core.scaling.policy import LEVEL_SECONDS

FEWEST_INTERVALS = 3
"""Before the last one: a line through two points leaves no doubt, however much there should be."""
SUDDEN_DOUBT = 3.0
"""Standard errors above zero from which on a slope of few seconds counts as a rise. It is for loads
such as the simulated `flash`: without it 12 % instead of 11 % of the requests are late there at 4 %
less cost, and a lower target utilization would buy less for more."""
DOUBT = 2.0
"""The same over the whole window, which has more points and fewer that happen to rise."""
STILL_SECONDS = 15.0
"""A rise over the window is only as fast as it was lately."""
STEP_ERROR = 0.7
"""Share of the squared error of a line: two levels that leave less are a step. More would hide the
beginning of many a ramp, less would take the noise on a step for one. Without the test a step makes
for a forecast of up to half of the demand for 15 s, which is too much where nothing is hedged."""


def trend(intervals: Sequence[LoadInterval]) -> float:
    """Rows/s by which demand rises each second, less one standard error; 0 if it may not rise."""
    if len(intervals) <= FEWEST_INTERVALS:
        return 0.0
    now = intervals[-1].time
    sudden = recent(intervals, now, LEVEL_SECONDS)
    still = recent(intervals, now, STILL_SECONDS)
    lately = slope_and_error(still if len(still) >= FEWEST_INTERVALS else intervals[-2:])[0]
    slow = 0.0 if _stepped(intervals[:-1]) else _rise(intervals, DOUBT, lately)
    return max(_rise(sudden, SUDDEN_DOUBT, slope_and_error(intervals[-2:])[0]), slow)


def forecast(trend: float, *, base: float, lead: float, cap: float) -> float:
    """Rows/s to expect on top of `base` in `lead` seconds, at most the share `cap` of it."""
    return min(trend * lead, cap * base)


def slope_and_error(intervals: Sequence[LoadInterval]) -> tuple[float, float]:
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
    rows = sum(one.arrival * one.seconds for one in intervals)
    requests = sum(one.requests for one in intervals)
    rows_per_request = rows / requests if requests > 0 else 1.0
    poisson = mean_rate * rows_per_request / max(1e-3, intervals[-1].seconds)
    return slope, math.sqrt(residual / spread) + math.sqrt(poisson / spread)


def _line(intervals: Sequence[LoadInterval]) -> tuple[float, float, float]:
    """Slope, squared spread of the times, and sum of squared errors of the line that fits best."""
    count = len(intervals)
    mean_time = sum(one.time for one in intervals) / count
    mean_rate = sum(one.arrival for one in intervals) / count
    points = [(one.time - mean_time, one.arrival - mean_rate) for one in intervals]
    spread = sum(time**2 for time, _ in points)
    slope = sum(time * rate for time, rate in points) / spread if spread > 0.0 else 0.0
    return slope, spread, sum((rate - slope * time) ** 2 for time, rate in points)


def _rise(intervals: Sequence[LoadInterval], doubt: float, at_most: float) -> float:
    if len(intervals) <= FEWEST_INTERVALS:
        return 0.0
    slope, error = slope_and_error(intervals[:-1])
    rise = min(slope, at_most)
    return rise - error if rise > doubt * error else 0.0


def _stepped(intervals: Sequence[LoadInterval]) -> bool:
    """Whether demand went from one level to another and rises no more."""
    if len(intervals) <= FEWEST_INTERVALS:
        return False
    # the two levels that fit best: their sum of squared errors, and where the second begins
    rates = [one.arrival for one in intervals]
    total, squares = sum(rates), sum(rate * rate for rate in rates)
    error, cut = min(
        (squares - before**2 / cut - (total - before) ** 2 / (len(rates) - cut), cut)
        for cut, before in enumerate(accumulate(rates[:-1]), 1)
    )
    _, _, line = _line(intervals)
    if error >= STEP_ERROR * line:
        return False
    since = intervals[cut:]
    if len(since) < FEWEST_INTERVALS:
        return True
    still, doubt = slope_and_error(since)
    return still <= doubt


# At every look demand is compared with what was forecast for it one start-up ago. Demand that is
# noisy, or that rises in a way that no trend shows, makes for errors, and the errors for a
# margin: as much is planned on top as would have covered all but the worst of them.

MEMORY = 600.0
"""Seconds for which errors and levels are remembered."""
QUANTILE = 0.85
"""Share of the errors to cover. The rest are bursts, or would cost more than they are worth."""
MOST = 1.0
"""Share of the demand that a margin adds at most."""
LEAST_MEMORY = 60.0
"""Seconds of errors before they say anything."""
MOST_EXPECTED = 60
"""Forecasts that are waited for at once; where starts take very long, not each look's is."""
HIGHEST_RATE = 1e24
"""Rows/s; above, a status was not written by this program."""


@dataclass(frozen=True, slots=True)
class Point:
    """A number at a time."""

    time: float  # seconds
    value: float


@dataclass(frozen=True, slots=True)
class Points:
    """Points in order of time, 16 bytes each: of every API there are hundreds."""

    times: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    @classmethod
    def of(cls, points: Iterable[Point]) -> "Points":
        """They are in order already."""
        kept = tuple(points)
        return cls(array("d", [p.time for p in kept]), array("d", [p.value for p in kept]))

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[Point]:
        return map(Point, self.times, self.values)

    def plus(self, time: float, value: float) -> "Points":
        """With one more, the latest."""
        return Points(self.times + array("d", [time]), self.values + array("d", [value]))

    def until(self, time: float) -> "Points":
        """Points at `time` and before."""
        end = bisect_right(self.times, time)
        return Points(self.times[:end], self.values[:end])

    def after(self, time: float) -> "Points":
        """Points later than `time`."""
        begin = bisect_right(self.times, time)
        return Points(self.times[begin:], self.values[begin:])


@dataclass(frozen=True, slots=True)
class Foresight:
    """Forecasts that are not due yet, errors of those that were, and the highest levels."""

    expected: Points = Points()  # rows/s, forecast at that time for one start-up later
    errors: Points = Points()  # demand / its forecast - 1
    highs: Points = Points()  # rows/s, falling: none has a higher one after it
    inherited: float = 0.0  # the margin of a process before this one

    @property
    def margin(self) -> float:
        """Share to add to the demand."""
        errors = self.errors
        if not errors or errors.times[-1] - errors.times[0] < LEAST_MEMORY:
            return self.inherited
        return min(MOST, max(0.0, quantile(errors.values, QUANTILE)))

    @property
    def highest(self) -> float:
        """Rows/s: nothing above what was there lately is planned for by a margin."""
        return self.highs.values[0] if self.highs else 0.0

    def highest_within(self, seconds: float, now: float) -> float:
        """Rows/s, of the last `seconds`."""
        return next(iter(self.highs.after(now - seconds).values), 0.0)

    def looked(
        self, now: float, *, lead: float, base: float, forecast: float
    ) -> tuple["Foresight", float | None]:
        """With a look taken in.

        Args:
            now: Seconds.
            lead: Seconds that a replica takes to start.
            base: Rows/s now.
            forecast: Rows/s more that are expected in `lead` seconds.

        Returns:
            The memory, and the error of the forecast for now; None: there was none.
        """
        due, waiting = self.expected.until(now - lead), self.expected.after(now - lead)
        if not waiting or now - waiting.times[-1] >= lead / MOST_EXPECTED:
            waiting = waiting.plus(now, base + forecast)
        higher = Points.of(one for one in self.highs.after(now - MEMORY) if one.value > base)
        memory = replace(self, expected=waiting, highs=higher.plus(now, base))
        if not due or now - due.times[-1] > 2.0 * lead:  # nothing was looked at meanwhile
            return memory, None
        error = base / max(due.values[-1], 1e-9) - 1.0
        return replace(memory, errors=self.errors.after(now - MEMORY).plus(now, error)), error

    def later(self, now: float) -> "Foresight":
        """On a clock that shows `now` where this one shows 0."""
        return replace(self, highs=Points.of(Point(p.time + now, p.value) for p in self.highs))

    def to_saved(self, now: float) -> dict[str, object]:
        """Margin and highs; of many highs neighbours become one that is as high and as late."""
        groups = grouped(tuple(self.highs.after(now - MEMORY)))
        return {
            "margin": short(self.margin),
            "highs": [[short(group[0].value), round(group[-1].time - now, 3)] for group in groups],
        }

    @classmethod
    def restored(cls, saved: Mapping[object, object]) -> "Foresight | None":
        """The value that `to_saved` described, times from 0 backwards; None if it is not that."""
        margin = number(saved.get("margin"), 0.0, MOST)
        highs = table(saved.get("highs"), (0.0, HIGHEST_RATE), (-MEMORY, 0.0))
        if margin is None or highs is None:
            return None
        points = sorted((Point(time, value) for value, time in highs), key=lambda p: p.time)
        return cls(highs=Points.of(points), inherited=margin)


# Nobody can start replicas in time for demand that jumps. Where it does so again and again, those
# of the last burst may be kept: the ski rental problem, where buying is keeping and renting is
# missing. One burst alone is no pattern.

SURPRISE = 0.25
"""Share by which demand is above its forecast of one start-up ago in a burst."""
CHANCE = 0.05
"""Share by which a burst is above all that was there within the hold; less is the same, and noise.
Asked to be a whole surprise above it, many a true burst on a load that wanders was missed."""
LEAST_LOAD = 0.5
"""Share of one replica's capacity: what fewer rows do is no burst but chance."""
BURST_MEMORY = 900.0
"""Seconds for which a burst is remembered."""
WORTH = 16.0
"""A burst that is missed until replicas have started is worth this many start-ups of all of them:
of the requests of a service with a target of 99 %, few may be missed."""
IDLE_LOAD = 0.05
"""Share of one replica's capacity: an API with less does nothing but probes and the odd call."""
IDLE_SECONDS = 300.0
"""Since the last burst, for which an idle API keeps anything. With some load on, keeping costs what
the burst needs beyond it; with none all that is kept does nothing. Five minutes is what the
HorizontalPodAutoscaler keeps by default, and what its users expect of an API that nobody calls."""
IDLE_SHARE = 0.5
"""Share of a burst's replicas that an idle API keeps. Half of them serve the next one's start while
the others start, and are half the price of a guess."""


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst; more surprises within one start-up belong to it."""

    begin: float  # seconds
    end: float  # when demand was last about as high
    peak: float  # rows/s


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A peak that was reached at least twice."""

    peak: float  # rows/s
    gap: float  # seconds from the end of one as high to the next, on average
    since: float  # seconds since the last one as high ended
    remembered: float  # seconds for which there will be two of them in memory


@dataclass(frozen=True, slots=True)
class KeptReplicas:
    """Replicas that stay for a burst, and for how long unless another comes."""

    replicas: int
    burst: Recurrence
    seconds: float


def bursts_of(
    before: Sequence[Burst],
    now: float,
    *,
    error: float | None,
    base: float,
    recent: float,
    least: float,
    hold: float,
) -> tuple[Burst, ...]:
    """The bursts to remember after a look.

    Args:
        before: After the last look.
        now: Seconds.
        error: Demand over its forecast, less 1; None: not known.
        base: Rows/s.
        recent: Rows/s, the highest of the last `hold` seconds. What only comes back to it was never
            gone: a client that paused is no burst, and its replicas are still there.
        least: Rows/s of the smallest burst.
        hold: Seconds for which replicas are held; more surprises within belong to the same burst.
    """
    kept = tuple(one for one in before if now - one.end < BURST_MEMORY)
    if kept and now - kept[-1].end < LEVEL_SECONDS and base * (1.0 + SURPRISE) >= kept[-1].peak:
        kept = (*kept[:-1], replace(kept[-1], end=now))
    if error is None or error <= SURPRISE or base <= least:
        return kept
    if kept and now - kept[-1].end < hold:
        last = replace(kept[-1], end=now, peak=max(kept[-1].peak, base))
        return (*kept[:-1], last)
    if base <= recent * (1.0 + CHANCE):
        return kept
    return (*kept[-(MOST_SAVED - 1) :], Burst(now, now, base))


def recurrences(bursts: Iterable[Burst], now: float) -> tuple[Recurrence, ...]:
    """For each peak that was reached at least twice, how often; `bursts` are in order of time."""
    every = list(bursts)
    found = []
    for peak in sorted({one.peak for one in every}, reverse=True):
        those = [one for one in every if one.peak >= peak]
        if len(those) > 1:
            between = [later.begin - earlier.end for earlier, later in pairwise(those)]
            mean = sum(between) / len(between)
            left = max(0.0, those[-2].end + BURST_MEMORY - now)
            found.append(Recurrence(peak, mean, now - those[-1].end, left))
    return tuple(found)


def kept_for(
    recurring: Iterable[Recurrence], *, need: int, one: float, lead: float, idle: bool
) -> KeptReplicas | None:
    """Replicas worth keeping, more than `need`, and what for; None: none.

    To keep n instead of `need` until the next burst costs (n - need) * gap replica-seconds. Not to
    keep them loses about n * lead replica-seconds of requests, worth WORTH times as much. A burst
    that is overdue by more than that is given up.

    Args:
        recurring: Peaks.
        need: Replicas without them.
        one: Rows/s to plan a replica with, > 0.
        lead: Seconds that a replica takes to start.
        idle: Less than IDLE_LOAD arrives.
    """
    found = []
    for it in recurring:
        count = whole(it.peak / one * (IDLE_SHARE if idle else 1.0))
        if count <= need:
            continue
        worth = WORTH * count * lead / (count - need)
        until = min(worth, IDLE_SECONDS) if idle else worth
        if it.gap < worth and it.since < until:
            found.append(KeptReplicas(count, it, min(until - it.since, it.remembered)))
    return max(found, key=lambda one: (one.replicas, one.seconds), default=None)


def bursts_later(bursts: Iterable[Burst], now: float) -> tuple[Burst, ...]:
    """On a clock that shows `now` where this one shows 0."""
    return tuple(Burst(one.begin + now, one.end + now, one.peak) for one in bursts)


def bursts_to_saved(bursts: Iterable[Burst], now: float) -> list[list[float]]:
    """As JSON: (begin, end, peak), times from 0 backwards."""
    return [[round(it.begin - now, 3), round(it.end - now, 3), short(it.peak)] for it in bursts]


def bursts_restored(saved: object) -> tuple[Burst, ...] | None:
    """Bursts from `bursts_to_saved`, or None if `saved` is not that."""
    bursts = table(saved, (-1e6, 0.0), (-1e6, 0.0), (0.0, HIGHEST_RATE))
    if bursts is None or any(begin > end for begin, end, _ in bursts):
        return None
    return tuple(sorted((Burst(*one) for one in bursts), key=lambda one: one.begin))
