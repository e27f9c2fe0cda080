"""How wrong the autoscaler's own forecasts were, and the margin that follows from it.

At every look demand is compared with what was forecast for it one start-up ago. Demand that is
noisy, or that rises in a way that no trend shows, makes for errors, and the errors for a margin:
as much is planned on top as would have covered all but the worst of them.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from batchedapi_core.scaling.numbers import grouped, number, quantile, short, table

MEMORY = 600.0
"""Seconds for which errors and levels are remembered."""
QUANTILE = 0.85
"""Of the errors, to be covered. The rest are bursts, or would cost more than they are worth."""
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
class Series:
    """Points in order of time, 16 bytes each: of every API there are hundreds."""

    times: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    @classmethod
    def of(cls, points: Iterable[Point]) -> "Series":
        """They are in order already."""
        kept = tuple(points)
        return cls(array("d", [p.time for p in kept]), array("d", [p.value for p in kept]))

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[Point]:
        return map(Point, self.times, self.values)

    def plus(self, time: float, value: float) -> "Series":
        """With one more, the latest."""
        return Series(self.times + array("d", [time]), self.values + array("d", [value]))

    def until(self, time: float) -> "Series":
        """Those at `time` and before."""
        end = bisect_right(self.times, time)
        return Series(self.times[:end], self.values[:end])

    def after(self, time: float) -> "Series":
        """Those later than `time`."""
        begin = bisect_right(self.times, time)
        return Series(self.times[begin:], self.values[begin:])


@dataclass(frozen=True, slots=True)
class Foresight:
    """Forecasts that are not due yet, errors of those that were, and the highest levels."""

    expected: Series = Series()  # rows/s, forecast at that time for one start-up later
    errors: Series = Series()  # demand / its forecast - 1
    highs: Series = Series()  # rows/s, falling: none has a higher one after it
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
        higher = Series.of(one for one in self.highs.after(now - MEMORY) if one.value > base)
        memory = replace(self, expected=waiting, highs=higher.plus(now, base))
        if not due or now - due.times[-1] > 2.0 * lead:  # nothing was looked at meanwhile
            return memory, None
        error = base / max(due.values[-1], 1e-9) - 1.0
        return replace(memory, errors=self.errors.after(now - MEMORY).plus(now, error)), error

    def later(self, now: float) -> "Foresight":
        """On a clock that shows `now` where this one shows 0."""
        return replace(self, highs=Series.of(Point(p.time + now, p.value) for p in self.highs))

    def to_saved(self, now: float) -> dict[str, object]:
        """Margin and highs; of many highs neighbours become one that is as high and as late."""
        groups = grouped(tuple(self.highs.after(now - MEMORY)))
        return {
            "margin": short(self.margin),
            "highs": [[short(group[0].value), round(group[-1].time - now, 3)] for group in groups],
        }

    @classmethod
    def restored(cls, saved: Mapping[object, object]) -> "Foresight | None":
        """What `to_saved` returned, times from 0 backwards; None if it is not that."""
        margin = number(saved.get("margin"), 0.0, MOST)
        highs = table(saved.get("highs"), (0.0, HIGHEST_RATE), (-MEMORY, 0.0))
        if margin is None or highs is None:
            return None
        points = sorted((Point(time, value) for value, time in highs), key=lambda p: p.time)
        return cls(highs=Series.of(points), inherited=margin)
